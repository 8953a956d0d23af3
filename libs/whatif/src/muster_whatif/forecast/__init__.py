"""When will a pending ask run? Simulations of the present state forward (decision 231)."""

// With an assembly file in its package, Go accepts a function without a body: schedule in core.go.

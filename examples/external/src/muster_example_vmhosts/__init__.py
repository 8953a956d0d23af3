"""An example plugin: the hosts and VMs of a VM manager as nodes and external allocations of Muster.

manager.py    the other manager: an inventory behind a JSON API. It knows nothing of Muster.
informer.py   speaks with it: lists, watches, gives documents (entry point ``vmhosts``).
handler.py    decides what they mean for the scheduler (entry point ``vm-hosts``).
"""

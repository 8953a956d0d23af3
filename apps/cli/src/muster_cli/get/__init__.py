"""``muster get``: lists nodes, applications, queues, asks, allocations, users, groups and resource managers."""

"""What ended: applications, nodes and queues that the view no longer has, read from their events."""

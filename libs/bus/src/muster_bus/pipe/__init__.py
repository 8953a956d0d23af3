"""The log for a child of the process that has it: at the other end of a pipe (``muster_service.channel``).

=============  ===========================================================================================
module         is
=============  ===========================================================================================
messages       what goes over, and the log's errors in a form that does
writing        both ends of appending: what a child appends is on the parent's log, in its order
serving        the parent's end for a child that reads the embedded log's file by itself
following      the child's: a whole :class:`~muster_bus.log.Log`
=============  ===========================================================================================
"""

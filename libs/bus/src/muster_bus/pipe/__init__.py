"""The log for a child process of the log's owner, over a pipe (``muster_runtime.message_channel``).

=============  ===========================================================================================
module         content
=============  ===========================================================================================
messages       the messages of the pipe, and an encoding of the log's errors
pipe_appends   both ends of appending: the child's records go to the parent's log in order
log_server     the parent's end for a child that reads the embedded log's file by itself
child_log      the child's end: a whole :class:`~muster_bus.log.Log`
=============  ===========================================================================================
"""

"""The execution of handlers: on threads, an event loop or processes, each call with its context and time limit."""

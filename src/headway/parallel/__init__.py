"""The parallel consumer: a driver of the engine whose handlers run on threads or on an event loop."""

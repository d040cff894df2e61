"""Calls: records whose senders want the handler's result. The ids of calls, and the stored form of results."""

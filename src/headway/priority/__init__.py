"""The priority consumer and producer, plain and for asyncio."""

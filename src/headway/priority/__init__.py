"""The consumer and the producers, plain and for asyncio."""

"""The priority consumer and the producers, each in a blocking form and in a form for asyncio."""

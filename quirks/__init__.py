"""The faults of librdkafka that Headway works around, each shown on the plain client: `make quirks`.

`docs/design/librdkafka.md` lists the faults. The last column of its tables names the function here that shows each one.
"""

"""`headway experiment`: the experiments of two Java clients, repeated with Headway and drawn beside the ideal.

The first three are those of the Java priority client: three levels in one topic, in three topics, and in waves. The
other two are those of the Java parallel consumer: time by the number of keys, and the size of the group. Each
experiment runs on a real Kafka, or in a simulation in which the real policies decide over simulated time.
"""

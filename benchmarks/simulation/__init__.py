"""Simulations that benchmarks use, where no machine is large enough."""

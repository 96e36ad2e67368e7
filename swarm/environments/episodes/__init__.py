"""Environments, and the code that plays and replays their episodes; a question that ends with its answer is one, too.

An environment is one module that knows neither limits nor the network.
"""

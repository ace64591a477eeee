"""HOLDS: spawns, reaps, signals, kills trees, pumps output.

Standard library only, one thread, no asyncio.
"""

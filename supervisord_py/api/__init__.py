"""HTTP over the Unix socket: one route table, peer credentials, problem documents, streams of
events and output.
"""

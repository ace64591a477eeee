"""The control plane's view of a child: spec, lifecycle, identity, output; and the keeper's
client.
"""

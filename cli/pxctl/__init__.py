"""pxctl: the thin client of pxd. It only knocks at the socket."""

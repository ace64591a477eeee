"""A control plane that only lends its channel: sends descriptor 3 to the test's socket, then obeys
one byte: its end.

The end of the test's side makes it exit 0, so that nothing is left behind by a failed test.
"""

import json
import os
import socket
import sys

CHANNEL_FD = 3

if "--check" in sys.argv:  # of a trial: greet the keeper, and end well
    body = json.dumps({"id": 1, "verb": "hello", "protocol": 1}).encode()
    with socket.socket(fileno=CHANNEL_FD) as channel:
        channel.sendall(len(body).to_bytes(4, "big") + body)
        channel.recv(65536)
    os._exit(0)

with socket.socket(socket.AF_UNIX) as sock:
    try:
        sock.connect(sys.argv[1])
    except OSError:
        os._exit(78)  # the test is gone: let the keeper stop for good
    socket.send_fds(sock, [b"%d" % os.getpid()], [CHANNEL_FD])
    os.close(CHANNEL_FD)
    word = sock.recv(1)
os._exit(word[0] if word else 0)

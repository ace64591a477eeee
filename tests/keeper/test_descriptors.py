"""The keeper's store of descriptors: what it gives out, and what nobody sees in /proc/PID/fd."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator

import pytest

from supervisord_py.keeper import descriptors
from supervisord_py.keeper.descriptors import DescriptorStore

NAMES = ("listen:tool:x", "file")


@pytest.fixture
def store() -> Iterator[DescriptorStore]:
    before = os.listdir("/proc/self/fd")
    made = DescriptorStore()
    yield made
    for name in made.names():
        made.drop(name)
    assert len(os.listdir("/proc/self/fd")) == len(before), "nothing stays open"


def listener() -> tuple[int, int, int]:
    """Return the descriptor, the inode and the port of a listening socket; the descriptor is the
    caller's.
    """
    sock = socket.create_server(("127.0.0.1", 0))
    inode, port = os.fstat(sock.fileno()).st_ino, sock.getsockname()[1]
    return sock.detach(), inode, port


def visible() -> set[int]:
    """Return the inodes of all that this process has open, as fuser(1) and lsof(8) look for
    them.
    """
    inodes = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            inodes.add(os.stat(f"/proc/self/fd/{name}").st_ino)
        except OSError:
            continue  # the listing's own
    return inodes


@pytest.mark.parametrize("name", NAMES)
def test_what_is_taken_is_a_duplicate_each_time(store: DescriptorStore, name: str) -> None:
    fd, inode, port = listener()
    store.put(name, fd)
    for _ in range(3):
        taken = store.take(name)
        assert (os.fstat(taken).st_ino, os.get_inheritable(taken)) == (inode, False)
        with socket.socket(fileno=taken) as same:
            assert same.getsockname()[1] == port
    assert (name in store, store.names()) == (True, [name])
    store.drop(name)
    store.drop(name)
    assert (name in store, store.names()) == (False, [])
    with pytest.raises(KeyError):
        store.take(name)


def test_a_listening_socket_is_not_visible_and_listens(store: DescriptorStore) -> None:
    fd, inode, port = listener()
    store.put("listen:tool:x", fd)
    assert inode not in visible()
    with socket.create_connection(("127.0.0.1", port)):
        pass
    store.drop("listen:tool:x")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_put_twice_takes_the_earlier_place(store: DescriptorStore, name: str) -> None:
    for _ in range(2):
        fd, inode, _ = listener()
        store.put(name, fd)
    taken = store.take(name)
    assert os.fstat(taken).st_ino == inode
    os.close(taken)


def test_everything_is_handed_over_twice_in_a_row(store: DescriptorStore) -> None:
    inodes = {}
    for name in NAMES:
        fd, inodes[name], _ = listener()
        store.put(name, fd)
    for _ in range(2):
        following = DescriptorStore()
        following.take_over(store.hand_over())
        for name in store.names():
            store.drop(name)
        assert inodes["listen:tool:x"] not in visible()
        for name, fd in following.hand_over().items():
            assert os.fstat(fd).st_ino == inodes[name]
            store.put(name, fd)
        for name in following.names():
            following.drop(name)


@pytest.mark.parametrize("refused", ["socket.socketpair", "_peek"])
def test_what_cannot_be_in_flight_is_kept_as_it_is(
    store: DescriptorStore, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ETOOMANYREFS, "too many references")

    fd, inode, _ = listener()
    with monkeypatch.context() as patched:
        patched.setattr(f"{descriptors.__name__}.{refused}", refuse)
        store.put("listen:tool:x", fd)
    taken = store.take("listen:tool:x")
    assert os.fstat(taken).st_ino == inode
    os.close(taken)

"""The sockets that all workers share an address with."""

import errno
import socket

import pytest

from gateway.config import Address
from gateway.supervisor.places import Places


def test_every_place_has_a_socket_on_the_same_port():
    """Port 0 is a real one, the same for all."""
    places = Places(Address("127.0.0.1", 0), 3)
    try:
        ((host, port),) = places.addresses
        names = [each.getsockname() for place in places.sockets for each in place]
        assert names == [(host, port)] * 3
        assert port > 0
        with socket.create_connection((host, port)):
            assert sum(map(accepts, (place[0] for place in places.sockets))) == 1
    finally:
        places.close()


def accepts(listener: socket.socket) -> bool:
    """Whether a connection waits here."""
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def test_a_name_is_bound_wherever_it_leads():
    """On the same port everywhere."""
    places = Places(Address("localhost", 0), 2)
    try:
        assert len({port for _, port in places.addresses}) == 1
        assert all(len(place) == len(places.addresses) for place in places.sockets)
    finally:
        places.close()


def test_an_address_of_others_is_not_shared_with_them():
    """Two supervisors would each get half of the clients."""
    first = Places(Address("127.0.0.1", 0), 1)
    try:
        with pytest.raises(OSError, match="in use") as raised:
            Places(Address("127.0.0.1", first.addresses[0][1]), 1)
        assert raised.value.errno == errno.EADDRINUSE
    finally:
        first.close()


def test_an_address_is_free_once_they_are_closed():
    """A restart at once takes it again, though a connection of the last one is still there."""
    first = Places(Address("127.0.0.1", 0), 2)
    at = first.addresses[0]
    with socket.create_connection(at):
        for (listener,) in first.sockets:
            accepts(listener)
        first.close()
        Places(Address(*at), 2).close()

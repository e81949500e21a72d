"""Whose a word is that names no call: of one caller's calls where no other ever used the channel."""

from dataclasses import dataclass

import pytest

from gateway.protocol.call import Context, Request
from gateway.upstream.company import Company


@dataclass(frozen=True)
class Call:
    request: Request


def call(caller: str = "", *, alone: bool = False, method: str = "tools/call") -> Call:
    return Call(Request(method, context=Context(caller, alone=alone)))


def joined(*calls: Call) -> Company:
    company = Company()
    for one in calls:
        company.join(one.request)
    return company


@pytest.mark.parametrize("mine", [call("ann"), call(alone=True)])
def test_of_one_caller_the_only_call_that_asked_is_meant(mine: Call) -> None:
    """Whatever else of his is under way."""
    other = Call(mine.request)
    company = joined(mine, other)
    assert company.only([mine], [mine, other]) is mine
    assert company.only([mine, other], [mine, other]) is None
    assert company.only([], [mine]) is None


@pytest.mark.parametrize(
    "another", [call("bob"), call(), call(alone=True), call("bob", method="resources/read")]
)
def test_once_several_used_it_nobody_is_meant(another: Call) -> None:
    """Also when the other's call is over."""
    mine = call("ann")
    for company in (joined(mine, another), joined(another, mine), joined(mine, another, mine)):
        assert company.only([mine], [mine]) is None


def test_of_callers_that_cannot_be_told_apart_one_is_meant_that_is_alone() -> None:
    one, other = call(), call()
    company = joined(one, other)
    assert company.only([one], [one]) is one
    assert company.only([one], [one, other]) is None


@pytest.mark.parametrize(
    "method",
    ["server/discover", "tools/list", "subscriptions/listen", "initialize", "logging/setLevel", "ping"],
)
def test_what_the_gateway_asks_for_itself_is_nobodys_company(method: str) -> None:
    """Lists and probes hold nothing of a caller's."""
    mine, own = call("ann"), call(method=method)
    assert joined(own, mine, own).only([mine], [mine, own]) is mine
    anonymous = call()
    assert joined(own, anonymous).only([anonymous], [anonymous, own]) is anonymous

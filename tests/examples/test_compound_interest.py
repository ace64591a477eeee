"""The sums of compound-interest, against closed forms."""

from __future__ import annotations

import http.client

import pytest

from examples.running_tool import DEADLINE, RunningTool


def test_a_deposit_grows_as_the_formula_says(interest: RunningTool) -> None:
    for times in (1, 4, 12, 365):
        deposit = {"principal": 1000, "annual_rate": 0.05, "years": 10, "compounds_per_year": times}
        answer = interest.post("/run", deposit).json()
        assert answer["final_balance"] == round(1000 * (1 + 0.05 / times) ** (10 * times), 2)
        assert answer["interest"] == pytest.approx(answer["final_balance"] - 1000)


def test_contributions_grow_as_an_annuity(interest: RunningTool) -> None:
    deposit = {"principal": 0, "annual_rate": 0.06, "years": 3, "monthly_contribution": 100}
    answer = interest.post("/run", deposit).json()
    assert answer["final_balance"] == pytest.approx(100 * ((1 + 0.005) ** 36 - 1) / 0.005, abs=0.01)
    assert answer["contributed"] == 3600


def test_the_schedule_adds_up(interest: RunningTool) -> None:
    deposit = {"principal": 500, "annual_rate": -0.1, "years": 4, "monthly_contribution": 10}
    answer = interest.post("/run", deposit).json()
    assert [row["year"] for row in answer["schedule"]] == [1, 2, 3, 4]
    balance = 500.0
    for row in answer["schedule"]:
        balance += row["contribution"] + row["interest"]
        assert row["balance"] == pytest.approx(balance, abs=0.05)
    assert answer["final_balance"] == answer["schedule"][-1]["balance"]


def test_without_interest_nothing_is_gained(interest: RunningTool) -> None:
    answer = interest.post("/run", {"principal": 10, "annual_rate": 0, "years": 2, "monthly_contribution": 1}).json()
    assert (answer["final_balance"], answer["interest"]) == (34, 0)


def test_ten_years_may_be_written_with_a_point(interest: RunningTool) -> None:
    answer = interest.post("/run", {"principal": 1, "annual_rate": 0, "years": 10.0})
    assert len(answer.json()["schedule"]) == 10


def test_the_stream_is_the_schedule(interest: RunningTool) -> None:
    deposit = {"principal": 1000, "annual_rate": 0.05, "years": 3}
    assert interest.post("/stream", deposit).lines() == interest.post("/run", deposit).json()["schedule"]


def test_a_connection_serves_more_than_one_request(interest: RunningTool) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", interest.port, timeout=DEADLINE)
    for _ in range(3):
        connection.request("POST", "/stream", body=b'{"principal": 1, "annual_rate": 0, "years": 1}')
        response = connection.getresponse()
        assert response.read().count(b"\n") == 1
        assert not response.will_close
    connection.close()

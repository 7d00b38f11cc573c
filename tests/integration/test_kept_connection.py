"""Polls on the kept connection, on real databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, sessionmaker

from lading.executors.orchestrator.kept_connection import poll
from tests.conftest import DATABASES


@pytest.fixture(params=DATABASES)
def engine(
    request: pytest.FixtureRequest, database_url: Callable[[str], str | None], tmp_path: Path
) -> Iterator[Engine]:
    engine = create_engine(database_url(request.param) or f"sqlite:///{tmp_path}/store.db")
    with engine.begin() as connection:
        connection.execute(text("create table number (value integer)"))
    yield engine
    engine.dispose()


def ask(engine: Engine, query: str) -> int:
    def answer(session: Session) -> int:
        return int(session.execute(text(query)).scalar_one())

    return poll(sessionmaker(engine).begin, answer)


def add(engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("insert into number values (1)"))


def count(engine: Engine) -> int:
    return ask(engine, "select count(*) from number")


def test_each_poll_sees_what_others_have_committed(engine: Engine) -> None:
    for number in range(3):
        assert count(engine) == number
        add(engine)


def test_a_statement_is_committed_and_locks_nothing_afterwards(engine: Engine) -> None:
    poll(sessionmaker(engine).begin, lambda session: session.execute(text("insert into number values (1)")))
    with engine.begin() as connection:
        connection.execute(text("delete from number"))
    assert count(engine) == 0


def test_a_failed_statement_is_reported_and_the_next_poll_answers(engine: Engine) -> None:
    assert count(engine) == 0
    with pytest.raises(DBAPIError):
        ask(engine, "select value from nowhere")
    assert count(engine) == 0


def test_another_database_gets_a_connection_of_its_own(engine: Engine, tmp_path: Path) -> None:
    add(engine)
    assert count(engine) == 1
    other = create_engine(f"sqlite:///{tmp_path}/other.db")
    assert ask(other, "select 7") == 7
    assert count(engine) == 1
    other.dispose()


def test_a_forked_process_leaves_its_parents_connection_alone(engine: Engine) -> None:
    assert count(engine) == 0
    if (child := os.fork()) == 0:
        os._exit(0 if ask(create_engine(engine.url), "select 7") == 7 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert count(engine) == 0


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_a_lost_connection_is_replaced(engine: Engine) -> None:
    process = ask(engine, "select pg_backend_pid()")
    assert ask(engine, "select pg_backend_pid()") == process
    with engine.connect() as connection:
        connection.execute(text(f"select pg_terminate_backend({process})"))
    assert ask(engine, "select pg_backend_pid()") != process
    assert count(engine) == 0

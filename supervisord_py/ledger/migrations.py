"""How the schema came to be: numbered steps, each in its own transaction, never edited once released.

Law: a file of any older version becomes the present one or stays exactly as it was; a file of a newer version is
refused, because an older program would lose what it does not understand. `PRAGMA user_version` holds the number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisord_py.errors import ConfigError

if TYPE_CHECKING:
    import sqlite3

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        """CREATE TABLE instances (
            key TEXT PRIMARY KEY, unit TEXT NOT NULL, pid INTEGER, start_time INTEGER, boot_id TEXT,
            started_at REAL NOT NULL, ready_at REAL, ended_at REAL, reason TEXT, code INTEGER, signal INTEGER,
            verdict TEXT, max_rss_bytes INTEGER, cpu_seconds REAL, start_method TEXT, port INTEGER,
            log_position INTEGER, log_end INTEGER, spec_digest TEXT) STRICT""",
        "CREATE INDEX instances_unit ON instances (unit, started_at)",
        "CREATE INDEX instances_open ON instances (key) WHERE ended_at IS NULL",
        """CREATE TABLE runs (
            id INTEGER PRIMARY KEY, unit TEXT NOT NULL, instance TEXT, started_at REAL NOT NULL, ended_at REAL,
            outcome TEXT, status INTEGER, error_kind TEXT, cold_start_ms REAL, duration_seconds REAL,
            request_id TEXT) STRICT""",
        "CREATE INDEX runs_unit ON runs (unit, id)",
        "CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT""",
        "CREATE INDEX events_unit ON events (unit, id)",
        "CREATE TABLE pins (unit TEXT PRIMARY KEY, forever INTEGER NOT NULL, pinned_at REAL NOT NULL) STRICT",
        """CREATE TABLE unit_state (
            unit TEXT PRIMARY KEY, state TEXT NOT NULL, facts TEXT NOT NULL, last_used REAL,
            restarts INTEGER NOT NULL, updated_at REAL NOT NULL) STRICT""",
        """CREATE TABLE idempotency (
            key TEXT NOT NULL, route TEXT NOT NULL, body_digest TEXT NOT NULL, status INTEGER, content_type TEXT,
            body BLOB, created_at REAL NOT NULL, PRIMARY KEY (key, route)) STRICT""",
        "CREATE INDEX idempotency_age ON idempotency (created_at)",
    ),
    (
        """CREATE TABLE kernel_sessions (
            id TEXT PRIMARY KEY, name TEXT NOT NULL, cwd TEXT NOT NULL, interpreter TEXT NOT NULL,
            backend TEXT NOT NULL, language TEXT NOT NULL, owner TEXT NOT NULL, created_at REAL NOT NULL,
            state TEXT NOT NULL, kernelspec TEXT, last_used REAL, reason TEXT, restarts INTEGER NOT NULL,
            instance TEXT, failure TEXT) STRICT""",
        "CREATE INDEX kernel_sessions_name ON kernel_sessions (name)",
        """CREATE TABLE kernel_cells (
            id TEXT PRIMARY KEY, session TEXT NOT NULL, call TEXT NOT NULL, ordinal INTEGER NOT NULL,
            code TEXT NOT NULL, status TEXT NOT NULL, queued_at REAL NOT NULL, started_at REAL NOT NULL, instance TEXT,
            title TEXT, ended_at REAL, duration_seconds REAL, execution_count INTEGER,
            total_bytes INTEGER NOT NULL DEFAULT 0,
            truncated INTEGER NOT NULL DEFAULT 0, lossy INTEGER NOT NULL DEFAULT 0, error TEXT, variables TEXT,
            steps TEXT NOT NULL DEFAULT '[]') STRICT""",
        "CREATE INDEX kernel_cells_session ON kernel_cells (session)",
        "CREATE INDEX kernel_cells_open ON kernel_cells (id) WHERE ended_at IS NULL",
    ),
    (
        """CREATE TABLE pipe_executions (
            id INTEGER PRIMARY KEY, pipe_name TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'queued',
            "trigger" TEXT NOT NULL, queue_group TEXT NOT NULL, queued_at TEXT NOT NULL,
            agent TEXT NOT NULL DEFAULT 'pi', model TEXT, provider TEXT, preset_id TEXT, not_before TEXT,
            started_at TEXT, finished_at TEXT, queue_wait_ms INTEGER, duration_ms INTEGER, timeout_seconds REAL,
            pid INTEGER, start_time INTEGER, boot_id TEXT, instance TEXT, trigger_event TEXT, trigger_key TEXT,
            api_port INTEGER, context_start TEXT, context_end TEXT, exit_code INTEGER, signal INTEGER,
            error_type TEXT, error_message TEXT, retry_of INTEGER, retry_count INTEGER NOT NULL DEFAULT 0,
            input_tokens INTEGER NOT NULL DEFAULT 0, output_tokens INTEGER NOT NULL DEFAULT 0,
            cache_read_tokens INTEGER NOT NULL DEFAULT 0, cache_write_tokens INTEGER NOT NULL DEFAULT 0,
            total_tokens INTEGER NOT NULL DEFAULT 0, cost REAL NOT NULL DEFAULT 0, turns INTEGER NOT NULL DEFAULT 0,
            output_dir TEXT, session_path TEXT, agent_version TEXT, incomplete INTEGER NOT NULL DEFAULT 0,
            stdout_bytes INTEGER NOT NULL DEFAULT 0, stderr_bytes INTEGER NOT NULL DEFAULT 0,
            lost_bytes INTEGER NOT NULL DEFAULT 0, invalid_utf8 INTEGER NOT NULL DEFAULT 0,
            plan TEXT, preset_snapshot TEXT, rendered_prompt TEXT, progress TEXT, stdout TEXT, stderr TEXT) STRICT""",
        "CREATE INDEX pipe_executions_status ON pipe_executions (pipe_name, status)",
        "CREATE UNIQUE INDEX pipe_executions_running ON pipe_executions (pipe_name) WHERE status = 'running'",
        "CREATE INDEX pipe_executions_waiting ON pipe_executions (queued_at, id) WHERE status = 'queued'",
        "CREATE INDEX pipe_executions_queued ON pipe_executions (pipe_name, queued_at DESC)",
        "CREATE INDEX pipe_executions_history ON pipe_executions (id, pipe_name, status, queued_at)",
        "CREATE INDEX pipe_executions_of_pipe ON pipe_executions (pipe_name, id, status, queued_at)",
        "CREATE INDEX pipe_executions_usage ON pipe_executions (started_at, pipe_name, total_tokens, cost)",
        """CREATE TABLE pipe_scheduler_state (
            pipe_name TEXT PRIMARY KEY, last_run_at TEXT, last_success_at TEXT,
            consecutive_failures INTEGER NOT NULL DEFAULT 0, enabled INTEGER, enabled_file INTEGER, muted INTEGER,
            schedule TEXT, anchor_at TEXT, last_due TEXT, occurrences INTEGER NOT NULL DEFAULT 0,
            last_context_end TEXT, last_decision TEXT, last_decision_at TEXT, notified INTEGER NOT NULL DEFAULT 0,
            first_seen_at TEXT) STRICT""",
        """CREATE TABLE pipe_claims (
            pipe_name TEXT NOT NULL, event_name TEXT NOT NULL, event_key TEXT NOT NULL, claimed_at TEXT NOT NULL,
            execution INTEGER, PRIMARY KEY (pipe_name, event_name, event_key)) STRICT""",
        "CREATE INDEX pipe_claims_age ON pipe_claims (claimed_at)",
        "CREATE INDEX pipe_claims_event ON pipe_claims (event_name, event_key)",
        "CREATE INDEX pipe_claims_execution ON pipe_claims (execution)",
    ),
    ("ALTER TABLE kernel_cells ADD COLUMN timeout_seconds REAL",),
    ("ALTER TABLE instances ADD COLUMN memory_peak_bytes INTEGER",),
    ("DROP TABLE runs",),  # a run is an event
)
VERSION = len(MIGRATIONS)
AT_OPEN = ("UPDATE idempotency SET status = 0 WHERE status IS NULL",)
"""What a start finds unfinished was cut off: nobody works on it any more."""
NUMBERED = ("pipe_executions",)
"""Tables whose ids are given out by the open ledger, so that nobody waits for a commit to learn one."""


def migrate(connection: sqlite3.Connection, path: str = "", upto: int = VERSION) -> int:
    """Bring a file to the present version; the connection is in autocommit mode. Returns how many steps were taken.

    Raises ConfigError: a newer program wrote it.
    """
    first = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if first > VERSION:
        raise ConfigError(
            f"the ledger {path} has schema version {first}; this pxd knows versions up to {VERSION}",
            hint="install the newer supervisord-py again, or move the file away to begin an empty ledger",
            file=path,
            line=None,
            pointer=None,
        )
    for number, statements in enumerate(MIGRATIONS[first:upto], first + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in statements:
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # some errors roll back by themselves
                connection.execute("ROLLBACK")
            raise
    return max(0, upto - first)

-- A ledger as the first release wrote it. Frozen: never edit; every later version must load it.
BEGIN TRANSACTION;
CREATE TABLE events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT;
INSERT INTO "events" VALUES(1,1763700000.5,'tool:lorenz-ode-solver','tool_started',NULL,'0badc0de.1tfajv0000aa',NULL,'{"pid":4711}');
INSERT INTO "events" VALUES(2,1763700060.25,'tool:lorenz-ode-solver','tool_stopped','memory_limit','0badc0de.1tfajv0000aa',1,'{}');
CREATE TABLE idempotency (
            key TEXT NOT NULL, route TEXT NOT NULL, body_digest TEXT NOT NULL, status INTEGER, content_type TEXT,
            body BLOB, created_at REAL NOT NULL, PRIMARY KEY (key, route)) STRICT;
INSERT INTO "idempotency" VALUES('k1','POST /r','d',200,'application/json',X'7B7D',1763700000.0);
INSERT INTO "idempotency" VALUES('k2','POST /r','d',NULL,NULL,NULL,1763700000.0);
CREATE TABLE instances (
            key TEXT PRIMARY KEY, unit TEXT NOT NULL, pid INTEGER, start_time INTEGER, boot_id TEXT,
            started_at REAL NOT NULL, ready_at REAL, ended_at REAL, reason TEXT, code INTEGER, signal INTEGER,
            verdict TEXT, max_rss_bytes INTEGER, cpu_seconds REAL, start_method TEXT, port INTEGER,
            log_position INTEGER, log_end INTEGER, spec_digest TEXT) STRICT;
INSERT INTO "instances" VALUES('0badc0de.1tfajv0000aa','tool:lorenz-ode-solver',4711,123456,'6b2f0f0e-0000-4000-8000-000000000000',1763700000.5,1763700000.75,1763700060.25,'memory_limit',NULL,9,'{"by": "keeper", "reason": "memory_limit", "rss_bytes": 629145600}',629145600,1.25,'spawn',40001,0,1024,'sha256:aa');
INSERT INTO "instances" VALUES('0badc0de.1tfajv0000ab','tool:text-stats',NULL,NULL,NULL,1763700061.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE pins (unit TEXT PRIMARY KEY, forever INTEGER NOT NULL, pinned_at REAL NOT NULL) STRICT;
INSERT INTO "pins" VALUES('tool:lorenz-ode-solver',1,1763700000.5);
CREATE TABLE runs (
            id INTEGER PRIMARY KEY, unit TEXT NOT NULL, instance TEXT, started_at REAL NOT NULL, ended_at REAL,
            outcome TEXT, status INTEGER, error_kind TEXT, cold_start_ms REAL, duration_seconds REAL,
            request_id TEXT) STRICT;
INSERT INTO "runs" VALUES(1,'tool:lorenz-ode-solver','0badc0de.1tfajv0000aa',1763700000.25,1763700001.5,'completed',200,NULL,250.0,1.25,'req-1');
INSERT INTO "runs" VALUES(2,'tool:text-stats',NULL,1763700061.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE unit_state (
            unit TEXT PRIMARY KEY, state TEXT NOT NULL, facts TEXT NOT NULL, last_used REAL,
            restarts INTEGER NOT NULL, updated_at REAL NOT NULL) STRICT;
INSERT INTO "unit_state" VALUES('tool:lorenz-ode-solver','failed','{"reason":"memory_limit"}',1763700001.5,2,1763700060.25);
CREATE INDEX instances_unit ON instances (unit, started_at);
CREATE INDEX instances_open ON instances (key) WHERE ended_at IS NULL;
CREATE INDEX runs_unit ON runs (unit, id);
CREATE INDEX runs_open ON runs (id) WHERE ended_at IS NULL;
CREATE INDEX events_unit ON events (unit, id);
CREATE INDEX idempotency_age ON idempotency (created_at);
COMMIT;
PRAGMA user_version = 1;

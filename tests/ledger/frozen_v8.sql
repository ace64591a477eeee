-- A ledger as schema version 8 was written. Frozen: never edit; every later version must load it.
BEGIN TRANSACTION;
CREATE TABLE events (
            id INTEGER PRIMARY KEY, time REAL NOT NULL, unit TEXT, event TEXT NOT NULL, reason TEXT, instance TEXT,
            cause INTEGER, facts TEXT NOT NULL) STRICT;
INSERT INTO "events" VALUES(1,1763700000.5,'tool:lorenz-ode-solver','tool_started',NULL,'0badc0de.1tfajv0000aa',NULL,'{"pid":4711}');
INSERT INTO "events" VALUES(2,1763700060.25,'tool:lorenz-ode-solver','tool_stopped','memory_limit','0badc0de.1tfajv0000aa',1,'{}');
INSERT INTO "events" VALUES(3,1763700061.0,'tool:lorenz-ode-solver','run',NULL,'0badc0de.1tfajv0000aa',NULL,'{"run":"r3","outcome":"completed","status":200,"error_kind":null,"duration_seconds":0.25}');
INSERT INTO "events" VALUES(4,1763700062.0,'tool:lorenz-ode-solver','run',NULL,'0badc0de.1tfajv0000aa',NULL,'{"run":"r4","outcome":"failed","status":500,"error_kind":"tool_failed","duration_seconds":0.5}');
INSERT INTO "events" VALUES(5,1763700062.0,'tool:lorenz-ode-solver','run_failed',NULL,'0badc0de.1tfajv0000aa',NULL,'{"status":500,"kind":"tool_failed","instance_ended":false,"run":"r4"}');
INSERT INTO "events" VALUES(6,1763700063.0,'tool:lorenz-ode-solver','run',NULL,NULL,NULL,'{"run":"r6","outcome":"cancelled","status":null,"error_kind":"cancelled","duration_seconds":1.5}');
INSERT INTO "events" VALUES(7,1763700064.0,'tool:text-stats','died','signal','0badc0de.1tfajv0000ab',NULL,'{"pid":4713,"code":null,"signal":9}');
INSERT INTO "events" VALUES(8,1763700065.0,'pipe:mail','execution_completed',NULL,NULL,NULL,'{"execution":7,"error_type":null}');
INSERT INTO "events" VALUES(9,1763700066.0,'pipe:mail','execution_failed',NULL,NULL,NULL,'{"execution":8,"error_type":"crash"}');
INSERT INTO "events" VALUES(10,1763700067.0,'tool:text-stats','stopped','evicted_ttl',NULL,NULL,'{}');
INSERT INTO "events" VALUES(11,1763700068.0,NULL,'ledger_degraded',NULL,NULL,NULL,'{"detail":"database or disk is full"}');
INSERT INTO "events" VALUES(12,1763700069.0,'tool:text-stats','run',NULL,NULL,NULL,'no JSON');
CREATE TABLE idempotency (
            key TEXT NOT NULL, route TEXT NOT NULL, body_digest TEXT NOT NULL, status INTEGER, content_type TEXT,
            body BLOB, created_at REAL NOT NULL, PRIMARY KEY (key, route)) STRICT;
INSERT INTO "idempotency" VALUES('k1','POST /r','d',200,'application/json',X'7B7D',1763700000.0);
INSERT INTO "idempotency" VALUES('k2','POST /r','d',NULL,NULL,NULL,1763700000.0);
CREATE TABLE instances (
            key TEXT PRIMARY KEY, unit TEXT NOT NULL, pid INTEGER, start_time INTEGER, boot_id TEXT,
            started_at REAL NOT NULL, ready_at REAL, ended_at REAL, reason TEXT, code INTEGER, signal INTEGER,
            verdict TEXT, max_rss_bytes INTEGER, cpu_seconds REAL, start_method TEXT, port INTEGER,
            log_position INTEGER, log_end INTEGER, spec_digest TEXT, memory_peak_bytes INTEGER) STRICT;
INSERT INTO "instances" VALUES('0badc0de.1tfajv0000aa','tool:lorenz-ode-solver',4711,123456,'6b2f0f0e-0000-4000-8000-000000000000',1763700000.5,1763700000.75,1763700060.25,'memory_limit',NULL,9,'{"by": "keeper", "reason": "memory_limit", "rss_bytes": 629145600}',629145600,1.25,'spawn',40001,0,1024,'sha256:aa',NULL);
INSERT INTO "instances" VALUES('0badc0de.1tfajv0000ab','tool:text-stats',NULL,NULL,NULL,1763700061.0,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE kernel_cells (
            id TEXT PRIMARY KEY, session TEXT NOT NULL, call TEXT NOT NULL, ordinal INTEGER NOT NULL,
            code TEXT NOT NULL, status TEXT NOT NULL, queued_at REAL NOT NULL, started_at REAL NOT NULL, instance TEXT,
            title TEXT, ended_at REAL, duration_seconds REAL, execution_count INTEGER,
            total_bytes INTEGER NOT NULL DEFAULT 0,
            truncated INTEGER NOT NULL DEFAULT 0, lossy INTEGER NOT NULL DEFAULT 0, error TEXT, variables TEXT,
            steps TEXT NOT NULL DEFAULT '[]', timeout_seconds REAL) STRICT;
INSERT INTO "kernel_cells" VALUES('00112233445566aa','default-3fa9c1','c1',0,'1/0','error',1763700001.0,1763700001.5,'0badc0de.1tfajv0000ac','divide',1763700001.75,0.25,1,42,0,0,'{"name":"ZeroDivisionError","value":"division by zero","traceback":[]}','kept','[]',NULL);
INSERT INTO "kernel_cells" VALUES('00112233445566ab','default-3fa9c1','c2',0,'while True: pass','timed_out',1763700002.0,1763700002.0,'0badc0de.1tfajv0000ac',NULL,1763700032.5,30.5,2,1048576,1,1,NULL,'kept','[{"action":"sigint","after_seconds":0.0,"detail":null}]',NULL);
INSERT INTO "kernel_cells" VALUES('00112233445566ac','default-3fa9c1','c3',0,'1+1','running',1763700040.0,1763700040.0,NULL,NULL,NULL,NULL,NULL,0,0,0,NULL,NULL,'[]',NULL);
CREATE TABLE kernel_sessions (
            id TEXT PRIMARY KEY, name TEXT NOT NULL, cwd TEXT NOT NULL, interpreter TEXT NOT NULL,
            backend TEXT NOT NULL, language TEXT NOT NULL, owner TEXT NOT NULL, created_at REAL NOT NULL,
            state TEXT NOT NULL, kernelspec TEXT, last_used REAL, reason TEXT, restarts INTEGER NOT NULL,
            instance TEXT, failure TEXT) STRICT;
INSERT INTO "kernel_sessions" VALUES('default-3fa9c1','default','/srv/project','/srv/project/.venv/bin/python','direct','python','session',1763700000.5,'idle',NULL,1763700010.25,NULL,1,'0badc0de.1tfajv0000ac',NULL);
INSERT INTO "kernel_sessions" VALUES('r-0a1b2c','r','/srv/project','spec:ir','direct','R','jupyter',1763700000.5,'failed','ir',NULL,'early_exit',0,'0badc0de.1tfajv0000ad','{"kind":"start_failed","status":503}');
CREATE TABLE pins (unit TEXT PRIMARY KEY, forever INTEGER NOT NULL, pinned_at REAL NOT NULL) STRICT;
INSERT INTO "pins" VALUES('tool:lorenz-ode-solver',1,1763700000.5);
CREATE TABLE pipe_claims (
            pipe_name TEXT NOT NULL, event_name TEXT NOT NULL, event_key TEXT NOT NULL, claimed_at TEXT NOT NULL,
            execution INTEGER, PRIMARY KEY (pipe_name, event_name, event_key)) STRICT;
INSERT INTO "pipe_claims" VALUES('mail','pipe_completed','daily-report:1','2025-11-21T07:01:30.500Z',3);
CREATE TABLE pipe_executions (
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
            plan TEXT, preset_snapshot TEXT, rendered_prompt TEXT, progress TEXT, stdout TEXT, stderr TEXT) STRICT;
INSERT INTO "pipe_executions" VALUES(1,'daily-report','completed','scheduled','scheduled','2025-11-21T07:00:00.000Z','pi','qwen3:8b','ollama','local',NULL,'2025-11-21T07:00:00.250Z','2025-11-21T07:01:30.500Z',250,90250,300.0,4711,123456,'6b2f0f0e-0000-4000-8000-000000000000','0badc0de.1tfajv0000ba',NULL,NULL,7860,'2025-11-20T23:00:00.000Z','2025-11-21T07:00:00.000Z',0,NULL,NULL,NULL,NULL,0,900,100,0,0,1000,0.0125,3,'./output/1/',NULL,'0.84.1',0,11,0,0,0,'{"agent":"pi"}','{"id":"local"}','Time range: …',NULL,'hello world','');
INSERT INTO "pipe_executions" VALUES(2,'daily-report','running','manual','manual','2025-11-21T08:00:00.000Z','command',NULL,NULL,NULL,NULL,'2025-11-21T08:00:00.100Z',NULL,NULL,NULL,NULL,4712,123999,'6b2f0f0e-0000-4000-8000-000000000000','0badc0de.1tfajv0000bb',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,0,0,0,0,0,0,0.0,0,NULL,NULL,NULL,0,0,0,0,0,NULL,NULL,NULL,'{"cursor":42}',NULL,NULL);
INSERT INTO "pipe_executions" VALUES(3,'mail','queued','retry','event','2025-11-21T08:00:01.000Z','pi',NULL,NULL,NULL,'2025-11-21T08:00:11.000Z',NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,1,1,0,0,0,0,0,0.0,0,NULL,NULL,NULL,0,0,0,0,0,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE pipe_scheduler_state (
            pipe_name TEXT PRIMARY KEY, last_run_at TEXT, last_success_at TEXT,
            consecutive_failures INTEGER NOT NULL DEFAULT 0, enabled INTEGER, enabled_file INTEGER, muted INTEGER,
            schedule TEXT, anchor_at TEXT, last_due TEXT, occurrences INTEGER NOT NULL DEFAULT 0,
            last_context_end TEXT, last_decision TEXT, last_decision_at TEXT, notified INTEGER NOT NULL DEFAULT 0,
            first_seen_at TEXT) STRICT;
INSERT INTO "pipe_scheduler_state" VALUES('daily-report','2025-11-21T08:00:00.100Z','2025-11-21T07:01:30.500Z',0,1,0,NULL,'0 7 * * *','2025-11-20T12:00:00.000Z','2025-11-21T07:00:00.000Z',1,'2025-11-21T07:00:00.000Z','waits until 07:00','2025-11-21T07:01:30.500Z',0,'2025-11-20T12:00:00.000Z');
INSERT INTO "pipe_scheduler_state" VALUES('mail',NULL,NULL,3,NULL,NULL,1,NULL,NULL,NULL,0,NULL,NULL,NULL,1,NULL);
CREATE TABLE unit_state (
            unit TEXT PRIMARY KEY, state TEXT NOT NULL, facts TEXT NOT NULL, last_used REAL,
            restarts INTEGER NOT NULL, updated_at REAL NOT NULL) STRICT;
INSERT INTO "unit_state" VALUES('tool:lorenz-ode-solver','failed','{"reason":"memory_limit"}',1763700001.5,2,1763700060.25);
CREATE INDEX instances_unit ON instances (unit, started_at);
CREATE INDEX instances_open ON instances (key) WHERE ended_at IS NULL;
CREATE INDEX events_unit ON events (unit, id);
CREATE INDEX idempotency_age ON idempotency (created_at);
CREATE INDEX kernel_sessions_name ON kernel_sessions (name);
CREATE INDEX kernel_cells_session ON kernel_cells (session);
CREATE INDEX kernel_cells_open ON kernel_cells (id) WHERE ended_at IS NULL;
CREATE UNIQUE INDEX pipe_executions_running ON pipe_executions (pipe_name) WHERE status = 'running';
CREATE INDEX pipe_executions_waiting ON pipe_executions (queued_at, id) WHERE status = 'queued';
CREATE INDEX pipe_executions_of_pipe ON pipe_executions (pipe_name, id, status, queued_at);
CREATE INDEX pipe_claims_age ON pipe_claims (claimed_at);
CREATE INDEX pipe_claims_event ON pipe_claims (event_name, event_key);
CREATE INDEX pipe_claims_execution ON pipe_claims (execution);
CREATE INDEX instances_interrupted ON instances (ended_at) WHERE reason = 'interrupted';
CREATE INDEX idempotency_open ON idempotency (key) WHERE status IS NULL;
COMMIT;
PRAGMA user_version = 8;

"""Front matters as people write them for other programs, and what each key of them is told.

By name: the front matter, and of its keys what the finding has to say. A key that is not listed
only has to be named. `FAILS` marks a file that cannot run; its findings say why.
"""

from __future__ import annotations

from typing import NamedTuple

FAILS = "FAILS"


class Foreign(NamedTuple):
    front: str
    told: dict[str, str]


PERMITTED = "the agent may do what you may do"
NAMED: dict[str, str] = {}

FRONTS: dict[str, Foreign] = {
    # -- Claude Code: commands, agents, skills, scheduled tasks ------------------------------------
    "claude-command": Foreign(
        "description: Review the last commit\nallowed-tools: Read, Grep, Bash(git "
        "log:*)\nargument-hint: '[branch]'",
        {
            "allowed-tools": PERMITTED,
        },
    ),
    "claude-command-model": Foreign(
        "description: Fix an issue\nargument-hint: NUMBER\nmodel: "
        "sonnet\ndisable-model-invocation: true\nagent: pi",
        NAMED,
    ),
    "claude-agent": Foreign(
        "name: claude-agent\ndescription: Looks at code\ntools: Read, Glob, Grep\nmodel: "
        "inherit\ncolor: blue",
        {
            "tools": PERMITTED,
        },
    ),
    "claude-agent-limits": Foreign(
        "name: researcher\ndescription: x\nmaxTurns: 12\npermissionMode: plan\n"
        "disallowedTools: Write\nisolation: worktree",
        {
            "maxTurns": "write limits: {turns: 12}",
            "permissionMode": PERMITTED,
            "disallowedTools": PERMITTED,
            "isolation": "pipe's folder",
        },
    ),
    "claude-agent-servers": Foreign(
        "name: db\ndescription: x\nmcpServers:\n  - db\nskills:\n  - sql\nhooks:\n"
        "  Stop: []\nmemory: project\nbackground: true",
        {
            "mcpServers": "its own configuration",
            "skills": "extra_argv",
            "hooks": "extra_argv",
            "memory": "history",
        },
    ),
    "claude-skill": Foreign(
        "name: pdf\ndescription: Fill forms\nlicense: MIT\nmetadata:\n  version: 1.2\n"
        "user-invocable: false\ncontext: fork",
        {
            "context": "extra_argv",
        },
    ),
    "claude-scheduled-task": Foreign(
        "name: standup\ncronExpression: '0 9 * * 1-5'\nenabled: true\ncwd: "
        "~/src/app\nnotifyOnCompletion: true",
        {
            "cronExpression": "write schedule: 0 9 * * 1-5",
            "cwd": "name the other folder in the prompt",
            "notifyOnCompletion": "pipe_completed",
        },
    ),
    "claude-output-style": Foreign(
        "name: terse\ndescription: Short answers\nkeep-coding-instructions: true",
        NAMED,
    ),
    # -- GitHub: actions and agentic workflows -----------------------------------------------------
    "actions-nightly": Foreign(
        "name: Nightly\non:\n  schedule:\n    - cron: '30 5 * * *'\npermissions:\n"
        "  contents: read\njobs: {a: {runs-on: x}}",
        {
            "on": "write schedule: 30 5 * * *, and timezone: UTC",
            "permissions": PERMITTED,
            "jobs": "command: ./program",
        },
    ),
    "actions-push": Foreign(
        "on: [push, pull_request]\nconcurrency:\n  group: ci\nenv:\n  CI: 1\n"
        "timeout-minutes: 15\ncontinue-on-error: true",
        {
            "on": "trigger: [NAME]",
            "concurrency": "pipes.slots_scheduled",
            "env": ".env",
            "timeout-minutes": "write timeout: 15m",
        },
    ),
    "actions-dispatch": Foreign(
        "on: workflow_dispatch\ndefaults: {run: {shell: bash}}\nif: github.ref == 'main'\n"
        "needs: build\nruns-on: ubuntu-24.04",
        {
            "if": "no condition",
            "needs": "pipe_completed:NAME",
            "runs-on": "on this machine",
        },
    ),
    "gh-aw-report": Foreign(
        "on:\n  schedule: daily around 9:00\nengine: copilot\nsafe-outputs:\n"
        "  create-issue:\nnetwork: defaults\ntimeout-minutes: 10",
        {
            "on": "write for example schedule: daily at 9:00",
            "engine": "write agent: claude, or another",
            "safe-outputs": PERMITTED,
            "network": PERMITTED,
            "timeout-minutes": "write timeout: 10m",
        },
    ),
    "gh-aw-triage": Foreign(
        "on:\n  issues:\n    types: [opened]\nengine: claude\ntools:\n"
        "  github: {toolsets: [issues]}\nimports: [shared/x.md]\nroles: all",
        {
            "on": "trigger: [NAME]",
            "engine": "write agent: claude",
            "tools": PERMITTED,
            "imports": "prompt",
        },
    ),
    "gh-aw-engine-map": Foreign(
        "on: {schedule: [{cron: '0 7 * * 1'}]}\nengine:\n  id: codex\n  model: gpt-5\nstop-after: "
        "+1mo\nstrict: true",
        {
            "on": "0 7 * * 1",
            "engine": "write agent: codex",
            "stop-after": "schedule_config",
            "strict": PERMITTED,
        },
    ),
    # -- Copilot, Cursor and other editors ---------------------------------------------------------
    "copilot-instructions": Foreign(
        "description: Python rules\napplyTo: '**/*.py'",
        NAMED,
    ),
    "copilot-agent": Foreign(
        "description: Plan first\ntools: ['search', 'edit']\nmodel: gpt-5\n"
        "mcp-servers: {x: {type: local}}\ntarget: vscode\n"
        "handoffs: [{label: Go, agent: coder}]",
        {
            "tools": PERMITTED,
            "mcp-servers": "its own configuration",
            "handoffs": "extra_argv",
        },
    ),
    "cursor-rule": Foreign(
        "description: Style\nglobs: src/**\nalwaysApply: true",
        NAMED,
    ),
    "windsurf-rule": Foreign(
        "trigger: model_decision\ndescription: Style",
        {
            "trigger": "rules are no pipes",
        },
    ),
    # -- Codex, OpenAI, opencode, pi, gemini -------------------------------------------------------
    "codex-prompt": Foreign(
        "description: Draft a PR\nargument-hint: FILES=<paths>",
        NAMED,
    ),
    "codex-automation": Foreign(
        "name: triage\nstatus: PAUSED\nrrule: FREQ=DAILY;BYHOUR=9\ncwds: "
        "[~/src/app]\nexecution_environment: worktree",
        {
            "status": "write enabled: false",
            "rrule": "schedule_config",
            "cwds": "name the other folder",
        },
    ),
    "codex-profile": Foreign(
        "model: gpt-5\napproval_policy: never\nsandbox_mode: read-only\n"
        "model_reasoning_effort: high\nmodel_provider: azure",
        {
            "approval_policy": PERMITTED,
            "sandbox_mode": PERMITTED,
            "model_reasoning_effort": "write effort: high",
            "model_provider": "presets.toml",
        },
    ),
    "openai-prompt": Foreign(
        "model: gpt-5\ntemperature: 0.2\nmax_tokens: 4096\ntop_p: 1\n"
        "response_format: json_object\nsystem: You are terse.",
        {
            "temperature": "extra_argv",
            "max_tokens": "presets.toml",
            "system": "write it into the prompt",
        },
    ),
    "openai-agent": Foreign(
        "instructions: Look at tickets\nhandoff: billing\nmodel: gpt-5\ntool_choice: "
        "required\nguardrails: [pii]",
        {
            "instructions": "prompt",
            "tool_choice": "extra_argv",
        },
    ),
    "opencode-agent": Foreign(
        "description: Reviews\nmode: subagent\nmodel: anthropic/claude\ntemperature: 0.1\n"
        "tools:\n  write: false\npermission:\n  edit: deny\nsteps: 5\ndisable: true",
        {
            "tools": PERMITTED,
            "permission": PERMITTED,
            "disable": "write enabled: false",
            "temperature": "extra_argv",
        },
    ),
    "opencode-command": Foreign(
        "description: Run tests\nsubtask: true\nmodel: x/y\ntemplate: Run $1",
        {
            "subtask": "extra_argv",
        },
    ),
    "pi-prompt": Foreign(
        "description: Review\nargument-hint: '<path>'\nthinking: high",
        {
            "thinking": "write effort: high",
        },
    ),
    "pi-skill": Foreign(
        "name: brave\ndescription: Search\nallowed-tools: bash\ncompatibility: pi",
        {
            "allowed-tools": PERMITTED,
        },
    ),
    "gemini-subagent": Foreign(
        "name: docs\nkind: local\ndescription: x\ntools: [read_file]\nmodel: gemini-3\nmax_turns: "
        "8\ntimeout_mins: 5",
        {
            "tools": PERMITTED,
            "max_turns": "write limits: {turns: 8}",
            "timeout_mins": "write timeout: 5m",
        },
    ),
    "gemini-command": Foreign(
        "description: Commit\nprompt: 'Write a message for {{args}}'",
        {
            "prompt": "below the closing",
        },
    ),
    "qwen-agent": Foreign(
        "name: t\ndescription: x\napprovalMode: yolo\nmodelConfig: {model: q}\nrunConfig: "
        "{max_time_minutes: 3}",
        {
            "approvalMode": PERMITTED,
        },
    ),
    "aider-like": Foreign(
        "model: gpt-5\nedit-format: diff\nauto-commits: false\nread: [CONVENTIONS.md]",
        NAMED,
    ),
    # -- cron-like files ---------------------------------------------------------------------------
    "cron-tz": Foreign(
        "schedule: 0 9 * * 1-5\ntz: America/New_York",
        {
            "tz": "write timezone: America/New_York",
        },
    ),
    "cron-word": Foreign(
        "cron: '*/15 * * * *'\ntimezone: Europe/Berlin",
        {
            "cron": "write schedule: '*/15 * * * *'",
        },
    ),
    "cron-zone-mistyped": Foreign(
        "schedule: daily at 9:00\ntz: Berlin",
        {
            "tz": "write for example timezone: Europe/Berlin",
        },
    ),
    "cron-both": Foreign(
        "schedule: daily at 9:00\ncron: 0 9 * * *",
        {
            "cron": "schedule says it already; remove cron",
        },
    ),
    "cronfish": Foreign(
        "schedule: 0 9 * * *\nrun_at: 2099-01-01T09:00:00Z\nconcurrency: skip\nmodel: opus",
        {
            "run_at": "schedule says it already",
            "concurrency": "one run of a pipe",
        },
    ),
    "every-minutes": Foreign(
        "interval_minutes: 30\nmax_retries: 2",
        {
            "interval_minutes": "every 30m",
            "max_retries": "retries: 2",
        },
    ),
    "every-text": Foreign(
        "every: 2h\nworkdir: /srv\nnotify: slack",
        {
            "every": "write schedule: every 2h",
            "notify": "pipe_failed",
        },
    ),
    "at-clock": Foreign(
        "at: '09:30'\ntimeout_seconds: 90",
        {
            "at": "write schedule: 'daily at 09:30'",
            "timeout_seconds": "timeout: 90",
        },
    ),
    "interval-number": Foreign(
        "interval: 300",
        {
            "interval": "write for example schedule: every 30m, weekday",
        },
    ),
    "schedule-map": Foreign(
        "schedule:\n  kind: cron\n  expr: 0 8 * * *\n  tz: Europe/Berlin",
        {
            FAILS: "write schedule: 0 8 * * *",
        },
    ),
    "schedule-list": Foreign(
        "schedule:\n  - cron: 15 4 * * *",
        {
            FAILS: "write schedule: 15 4 * * *",
        },
    ),
    "trigger-schedule": Foreign(
        "trigger: schedule\nwhen: hourly",
        {
            "trigger": "write for example schedule:",
            "when": "write schedule: '@hourly'",
        },
    ),
    "trigger-map": Foreign(
        "trigger:\n  cron: 0 9 * * *",
        {
            FAILS: "write schedule: 0 9 * * *",
        },
    ),
    "gate": Foreign(
        "schedule: hourly\nprecheck: ./changed.sh\nstatus: active",
        {
            "precheck": "no condition is looked at",
        },
    ),
    "hermes-job": Foreign(
        "schedule: every 2h\ndeliver: telegram\nskills: [news]\nrepeat: 3\nworkdir: /srv\nscript: "
        "fetch.py",
        {
            "deliver": "pipe_failed",
            "repeat": "schedule says it already",
            "script": "command: ./program",
        },
    ),
    "ofelia": Foreign(
        "schedule: '@daily'\ncontainer: web\nuser: www\nno-overlap: true\nslack-webhook: "
        "https://example.org/x",
        {
            "user": "runs as the daemon's user",
            "no-overlap": "one run of a pipe",
            "slack-webhook": "pipe_failed",
        },
    ),
    "systemd-timer": Foreign(
        "OnCalendar: '*-*-* 06:00:00'\nPersistent: true\nRandomizedDelaySec: 300\n"
        "ExecStart: /bin/x\nTimeoutStartSec: 60\nMemoryMax: 512M\nUser: me\n"
        "WorkingDirectory: /srv",
        {
            "OnCalendar": "write for example schedule: every 30m, weekday",
            "Persistent": "made good once",
            "RandomizedDelaySec": "stagger_seconds",
            "TimeoutStartSec": "timeout: 60",
            "MemoryMax": "limits: {memory: 512M}",
        },
    ),
    "kubernetes-cronjob": Foreign(
        "apiVersion: batch/v1\nkind: CronJob\nconcurrencyPolicy: Forbid\nsuspend: true\n"
        "backoffLimit: 1\nstartingDeadlineSeconds: 60\nactiveDeadlineSeconds: 600\n"
        "successfulJobsHistoryLimit: 3",
        {
            "suspend": "write enabled: false",
            "backoffLimit": "write retries: 1",
            "activeDeadlineSeconds": "write timeout: 600",
            "successfulJobsHistoryLimit": "keep_days",
        },
    ),
    "airflow-like": Foreign(
        "dag_id: etl\nschedule_interval: '0 3 * * *'\nstart_date: 2026-01-01\n"
        "catchup: false\nmax_active_runs: 1\ndefault_args: {owner: me}\n"
        "execution_timeout: 30m\nemail_on_failure: true\ndepends_on_past: false\nretries: 2",
        {
            "schedule_interval": "write schedule: 0 3 * * *",
            "start_date": "schedule_config",
            "catchup": "made good once",
            "execution_timeout": "write timeout: 30m",
            "email_on_failure": "pipe_failed",
        },
    ),
    "prefect-like": Foreign(
        "name: flow\ncron: 0 6 * * *\nparameters: {day: mon}\nretry_delay_seconds: 60\nlog_prints: "
        "true\nwork_pool: x",
        {
            "cron": "write schedule: 0 6 * * *",
            "parameters": "--context",
            "retry_delay_seconds": "delay: 30s",
        },
    ),
    "apscheduler": Foreign(
        "trigger: cron\nhour: 9\nminute: 30\nday_of_week: mon-fri\nmisfire_grace_time: 60\n"
        "coalesce: true\nmax_instances: 1",
        {
            "trigger": "write for example schedule:",
            "hour": "write for example schedule:",
            "misfire_grace_time": "made good once",
        },
    ),
    "n8n-like": Foreign(
        "name: wf\nactive: false\nnodes: []\nconnections: {}\nsettings: {timezone: "
        "UTC}\nversionId: 7\ntags: [a]",
        {
            "active": "write enabled: false",
            "settings": "--context",
        },
    ),
    "make-like": Foreign(
        "depends_on: [build, test]\ncmd: make report\nshell: bash\nsecrets: [TOKEN]",
        {
            "depends_on": "pipe_completed",
            "cmd": "agent: command",
            "secrets": ".env",
        },
    ),
    # -- notes and sites ---------------------------------------------------------------------------
    "jekyll": Foreign(
        "layout: post\ntitle: Hi\ndate: 2026-01-01\ncategories: [a]\npermalink: /x\npublished: "
        "false",
        {
            "published": "write enabled: false",
        },
    ),
    "hugo": Foreign(
        "title: Hi\ndraft: true\nweight: 3\nexpiryDate: 2099-01-01\nslug: hi\ntoc: true",
        {
            "draft": "write enabled: false",
            "expiryDate": "ending",
        },
    ),
    "hugo-ready": Foreign(
        "title: Hi\ndraft: false\naliases: [/y]",
        NAMED,
    ),
    "obsidian": Foreign(
        "aliases: [A]\ntags: [b]\ncssclasses: [wide]\ncreated: 2026-01-01\nup: '[[Home]]'\nstatus: "
        "reading",
        {
            "status": "enabled: false",
        },
    ),
    # -- the family that this format comes from ----------------------------------------------------
    "screen-meeting": Foreign(
        "schedule: manual\ntrigger:\n  events: [meeting_ended]\npermissions: reader\n"
        "connections: [slack]\nicon: x\nfeatured: true",
        {
            "trigger": "POST /api/events/NAME",
            "permissions": PERMITTED,
            "connections": "own configuration",
        },
    ),
    "screen-both": Foreign(
        "preset: auto\nmodel: haiku\nschedule: every 1h\nlookback: 1h\nsubagent: "
        "false\nsource_slug: a/b",
        {
            "model": "model has no effect beside preset",
            "lookback": "TIME RANGE",
        },
    ),
    # -- costs, ceilings, keys ---------------------------------------------------------------------
    "ceilings": Foreign(
        "max_cost: 0.5\nmax_budget_usd: 1\ndaily_budget: 3\nturns: 9\nmonthly_cost: 20\n"
        "cpus: 2\nmemory_mb: 512\npriority: high",
        {
            "max_cost": "write limits: {cost: 0.5}",
            "daily_budget": "write budget: {daily_cost: 3}",
            "turns": "write limits: {turns: 9}",
            "memory_mb": "write limits: {memory: 512MB}",
            "cpus": "cpu_percent",
        },
    ),
    "ceilings-beside": Foreign(
        "limits: {cost: 1}\nmax_turns: 9\nmax_cost: 2",
        {
            "max_turns": "add turns: 9 to limits",
            "max_cost": "limits says it already",
        },
    ),
    "secret-inside": Foreign(
        "agent: claude\napi_key: sk-123\nbase_url: https://example.org/v1",
        {
            "api_key": "a key has no place here",
            "base_url": "presets.toml",
        },
    ),
    "session": Foreign(
        "agent: claude\nresume: true\nsession_id: 7\nfallback_model: haiku",
        {
            "resume": "history: true",
            "fallback_model": "preset: [first, second",
        },
    ),
    # -- slips of the pen --------------------------------------------------------------------------
    "typos": Foreign(
        "shedule: every 1h\ntimout: 10m\nenabeld: false\ndesciption: x\nallowed-tool: "
        "Read\npreest: fast\nmax-turn: 5",
        {
            "shedule": "did you mean 'schedule'?",
            "timout": "did you mean 'timeout'?",
            "enabeld": "did you mean 'enabled'?",
            "desciption": "did you mean 'description'?",
            "preest": "did you mean 'preset'?",
            "allowed-tool": PERMITTED,
            "max-turn": "write limits: {turns: 5}",
        },
    ),
    "spelling": Foreign(
        "Schedule: every 1h\ntimeZone: Europe/Berlin\nTIMEOUT: 10m\ntime-out: 5\nRun-On-Enable: "
        "false",
        {
            "Schedule": "write schedule: every 1h",
            "timeZone": "write timezone: Europe/Berlin",
            "TIMEOUT": "write timeout: 10m",
        },
    ),
    # -- keys of ours that have no effect where they stand -----------------------------------------
    "idle-effort": Foreign(
        "agent: gemini\neffort: high\nrun_on_enable: true\nschedule: daily at 9:00",
        {
            "effort": "gemini is not told it",
            "run_on_enable": "the schedule is no interval",
        },
    ),
    "model-as-title": Foreign(
        "agent: claude\nmodel: Claude Sonnet 4.5",
        {
            "model": "reads like a title",
        },
    ),
    "agent-shell": Foreign(
        "agent: shell\nprompt: ./run.sh",
        {
            "agent": "write agent: command",
            "prompt": "below the closing",
        },
    ),
    "never-seen": Foreign(
        "frobnicate: 7\nx-team: a\nzzz: {a: [1]}",
        {
            "frobnicate": "pipe.md(5)",
            "zzz": "pipe.md(5)",
        },
    ),
}

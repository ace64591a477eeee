"""Keys of other programs' front matter, and what to write here instead. Data and pure functions; no
I/O.

`TABLE` is the whole knowledge: each row has the words that other programs use for one thing, and
the cure. A word is compared without case, hyphens, underscores and dots, so that `timeout-minutes`,
`timeoutMinutes` and `TIMEOUT_MINUTES` are one. Where the value can be written for a key of ours,
`suggestions` says how; the caller tries each of them and takes the first that reads well, because a
wrong cure is worse than none. pipe.md(5) has the same table for people.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

from supervisord_py.config.documents import nearest


class Weight(Enum):
    """What a key promises that nothing here keeps."""

    NO_EFFECT = "has no effect here"
    NOT_ENFORCED = "is not enforced here: the agent may do what you may do"
    MINOR = "is kept and has no effect"  # it describes the file, and changes no run


class Reading(Enum):
    """How a value is read for a key of ours; `_READERS` has the functions."""

    NOTHING = "nothing"  # the value does not say what to write here
    TEXT = "text"
    WHOLE = "whole"  # as it stands, also a list or a map
    ON = "on"
    OFF = "off"  # the opposite of what it says
    STATE = "state"  # a word such as paused
    MILLISECONDS = "ms"
    SECONDS = "s"
    MINUTES = "m"
    HOURS = "h"
    DAYS = "d"
    MEMORY = "memory"  # a bare number that is small may be of any unit
    MEGABYTES = "MB"
    PROCESSORS = "processors"  # 2 are 200 % of one
    PERCENT = "percent"
    SHARE = "share"  # of a processor, where the value has a unit: 50% or 500m
    RETRIES = "retries"  # a number, or a map that holds it
    SCHEDULE = "schedule"
    EVERY_MILLISECONDS = "every ms"
    EVERY_SECONDS = "every s"
    EVERY_MINUTES = "every m"
    EVERY_HOURS = "every h"
    EVERY_DAYS = "every d"
    AGENT = "agent"


class ForeignKey(NamedTuple):
    words: str  # separated by spaces
    hint: str  # the cure where the value says no more
    key: str = ""  # ours that the value is written for; with a dot, the key of a map
    reading: Reading = Reading.NOTHING
    weight: Weight = Weight.NO_EFFECT


_ENFORCED_BY = "the agent's own options do it: extra_argv in agents.toml(5)"
_IN_PRESETS = "write it into presets.toml(5), and name the preset here: preset: NAME"
_IN_PROMPT = "write it into the prompt, below the closing ---"
_ONE_AT_A_TIME = (
    "one run of a pipe goes on at a time; pipes.slots_scheduled in pxd.toml(5) bounds all of them"
)
_TELL = (
    "add a pipe that does it, with trigger: [pipe_completed:NAME] or [pipe_failed:NAME]; see "
    "example:tell-failure"
)
_FOLDER = "the agent starts in the pipe's folder; name the other folder in the prompt"
_OUTPUT = (
    "the agent writes into ./output/ID/ ($PX_OUTPUT_DIR); `pxctl pipe output` prints what it said"
)
_WEBHOOK = "whoever sees it calls POST /api/events/NAME; write trigger: [NAME]"
_OF_THE_AGENT = "set it in the agent's own configuration, or by extra_argv in agents.toml(5)"
_CATCH_UP = "a missed run is made good once, within 12 hours; this cannot be changed"
_AS_DAEMON = "it runs as the daemon's user, with the daemon's priority"

TABLE: tuple[ForeignKey, ...] = (
    # When it runs.
    ForeignKey(
        "tz timezone_name timezone_id zone zone_info iana_timezone cron_tz cron_timezone"
        " schedule_timezone default_timezone user_timezone utc_offset",
        "write for example timezone: Europe/Berlin",
        "timezone",
        Reading.TEXT,
    ),
    ForeignKey(
        "cron crontab cron_expression cron_expr cron_schedule cron_string cron_spec cronline expr"
        " schedules schedule_at schedule_cron schedule_expression schedule_interval interval"
        " repeat_interval period every repeat repeats recurrence run_every frequency cadence when"
        " time times at run_at start_time at_time time_of_day fire_at next_run once on_calendar"
        " on_schedule on_unit_active_sec sched run_schedule daily_at",
        "write for example schedule: every 30m, weekday at 9:30, or a cron line in quotes",
        "schedule",
        Reading.SCHEDULE,
    ),
    ForeignKey(
        "interval_second interval_seconds interval_sec interval_secs interval_s every_second "
        "every_seconds every_secs"
        " period_seconds poll_interval_seconds",
        "write for example schedule: every 90s",
        "schedule",
        Reading.EVERY_SECONDS,
    ),
    ForeignKey(
        "interval_minute interval_minutes interval_min interval_mins interval_m every_minute "
        "every_minutes every_mins"
        " period_minutes poll_interval_minutes",
        "write for example schedule: every 30m",
        "schedule",
        Reading.EVERY_MINUTES,
    ),
    ForeignKey(
        "interval_hour interval_hours interval_hr interval_hrs interval_h every_hour every_hours "
        "period_hours",
        "write for example schedule: every 2h",
        "schedule",
        Reading.EVERY_HOURS,
    ),
    ForeignKey(
        "every_ms every_millis interval_ms interval_millis interval_milliseconds period_ms",
        "write for example schedule: every 90s",
        "schedule",
        Reading.EVERY_MILLISECONDS,
    ),
    ForeignKey(
        "interval_days every_days every_day period_days",
        "write for example schedule: every 2 days",
        "schedule",
        Reading.EVERY_DAYS,
    ),
    ForeignKey(
        "at_ms",
        "write for example schedule: at 2099-01-01T09:00:00Z",
    ),
    ForeignKey(
        "on",
        "write for example schedule: daily at 9:00, or trigger: [NAME] for an event; by hand it "
        "runs anyway",
        "schedule",
        Reading.SCHEDULE,
    ),
    ForeignKey(
        "weekdays weekday day_of_week days_of_week dow day day_of_month month hour minute at_hour "
        "at_minute",
        "write for example schedule: mon,thu at 9:00, or"
        " schedule_config: {frequency: weeks, days_of_week: [1], at_hour: 9}",
    ),
    ForeignKey(
        "rrule",
        "write for example schedule_config: {frequency: weeks, days_of_week: [1], at_hour: 9}",
    ),
    ForeignKey(
        "start_date start_at start starting starts_at publish_date not_before valid_from end_date"
        " end_at end ending ends_at expiry_date expires expires_at stop_after until valid_until"
        " max_runs max_occurrences run_count",
        "write for example schedule_config: {frequency: days, at_hour: 9, ending: 2099-12-31},"
        " with starting or max_occurrences",
    ),
    ForeignKey(
        "catch_up misfire_grace_time misfire_policy starting_deadline_seconds persistent "
        "run_missed coalesce wake_mode",
        _CATCH_UP,
    ),
    ForeignKey(
        "jitter random_delay randomized_delay_sec stagger splay accuracy_sec",
        "pipes.stagger_seconds of pxd.toml(5) spreads the starts after boot or sleep",
    ),
    ForeignKey(
        "run_on_start run_on_startup run_at_startup run_at_load run_immediately on_boot_sec "
        "on_startup_sec startup",
        "write run_on_enable: true with an interval, such as schedule: every 1h",
        "run_on_enable",
        Reading.ON,
    ),
    # Whether it runs.
    ForeignKey(
        "disabled disable disable_schedule paused pause is_paused is_paused_upon_creation suspend"
        " suspended draft archived inactive muted skip off hidden_from_schedule",
        "write enabled: false",
        "enabled",
        Reading.OFF,
    ),
    ForeignKey(
        "active enable is_enabled is_active enabled_by_default published live running",
        "write enabled: true or false",
        "enabled",
        Reading.ON,
    ),
    ForeignKey(
        "status state",
        "write enabled: false to keep it from running by itself",
        "enabled",
        Reading.STATE,
    ),
    # Its bounds.
    ForeignKey(
        "timeout_second timeout_seconds timeout_secs timeout_sec timeout_s max_runtime_seconds"
        " max_duration_seconds active_deadline_seconds timeout_start_sec runtime_max_sec"
        " max_execution_time_seconds kill_after_seconds",
        "write for example timeout: 10m",
        "timeout",
        Reading.SECONDS,
    ),
    ForeignKey(
        "time_limit max_runtime max_duration max_time deadline run_timeout job_timeout"
        " task_timeout agent_timeout execution_timeout max_execution_time kill_after"
        " dagrun_timeout wall_time",
        "write for example timeout: 10m",
        "timeout",
        Reading.SECONDS,
    ),
    ForeignKey(
        "timeout_minute timeout_minutes timeout_mins timeout_min timeout_m max_runtime_minutes "
        "max_minutes"
        " max_duration_minutes time_limit_minutes",
        "write for example timeout: 10m",
        "timeout",
        Reading.MINUTES,
    ),
    ForeignKey(
        "timeout_hour timeout_hours timeout_hrs timeout_hr timeout_h max_hours max_runtime_hours "
        "max_duration_hours"
        " time_limit_hours",
        "write for example timeout: 1h",
        "timeout",
        Reading.HOURS,
    ),
    ForeignKey(
        "timeout_day timeout_days timeout_d max_runtime_days max_duration_days",
        "write for example timeout: 1d",
        "timeout",
        Reading.DAYS,
    ),
    ForeignKey(
        "timeout_ms timeout_millis timeout_milliseconds max_runtime_ms",
        "write for example timeout: 10m",
        "timeout",
        Reading.MILLISECONDS,
    ),
    ForeignKey(
        "max_turns turns turn_limit max_steps steps_limit max_iterations max_iteration iterations"
        " max_tool_calls max_rounds max_loops recursion_limit",
        "write for example limits: {turns: 50}",
        "limits.turns",
        Reading.TEXT,
    ),
    ForeignKey(
        "tokens token_limit max_total_tokens token_budget tokens_limit",
        "write for example limits: {tokens: 200k}",
        "limits.tokens",
        Reading.TEXT,
    ),
    ForeignKey(
        "cost max_cost cost_limit max_cost_usd max_budget max_budget_usd budget_usd max_spend"
        " spend_limit price_limit max_price",
        "write for example limits: {cost: 0.50}, in US dollars",
        "limits.cost",
        Reading.TEXT,
    ),
    ForeignKey(
        "memory_limit max_memory mem_limit memory_max max_rss",
        "write for example limits: {memory: 512MB}",
        "limits.memory",
        Reading.MEMORY,
    ),
    ForeignKey(
        "memory_mb max_memory_mb memory_limit_mb memory_size",
        "write for example limits: {memory: 512MB}",
        "limits.memory",
        Reading.MEGABYTES,
    ),
    ForeignKey(
        "cpus num_cpus cpu_count",
        "write for example limits: {cpu_percent: 200} for two processors",
        "limits.cpu_percent",
        Reading.PROCESSORS,
    ),
    ForeignKey(
        "cpu_percent cpu_max_percent",
        "write for example limits: {cpu_percent: 50}",
        "limits.cpu_percent",
        Reading.PERCENT,
    ),
    ForeignKey(
        "cpu cpu_limit cpu_quota",
        "write for example limits: {cpu_percent: 50}",
        "limits.cpu_percent",
        Reading.SHARE,
    ),
    ForeignKey(
        "processes pids_limit max_processes tasks_max nproc",
        "write for example limits: {processes: 100}",
        "limits.processes",
        Reading.TEXT,
    ),
    ForeignKey(
        "daily_cost daily_budget max_daily_cost cost_per_day daily_cost_limit",
        "write for example budget: {daily_cost: 2.50}",
        "budget.daily_cost",
        Reading.TEXT,
    ),
    ForeignKey(
        "daily_tokens max_daily_tokens tokens_per_day daily_token_limit",
        "write for example budget: {daily_tokens: 1M}",
        "budget.daily_tokens",
        Reading.TEXT,
    ),
    ForeignKey(
        "monthly_cost weekly_budget max_monthly_cost",
        "write for example budget: {daily_cost: 2.50}",
    ),
    ForeignKey(
        "retry max_retries retry_count retries_max num_retries retry_limit retry_attempts "
        "backoff_limit restart_count",
        "write for example retries: 3",
        "retries",
        Reading.RETRIES,
    ),
    ForeignKey(
        "retry_delay retry_interval retry_delay_seconds retry_wait retry_backoff backoff"
        " retry_exponential_backoff restart_sec max_retry_delay attempts max_attempts retry_policy"
        " restart_policy restart on_timeout",
        "write for example retries: {max: 3, delay: 30s, on_timeout: yes}",
    ),
    ForeignKey(
        "concurrency concurrency_policy concurrency_group concurrent max_concurrency"
        " max_concurrent max_concurrent_runs max_active_runs max_active_tasks max_parallel"
        " parallel parallelism max_instances singleton overlap allow_overlap no_overlap"
        " allow_parallel mutex lock exclusive queue pool pool_slots debounce cooldown rate_limit"
        " throttle",
        _ONE_AT_A_TIME,
    ),
    ForeignKey(
        "priority priority_weight nice user run_as run_as_user uid group gid",
        _AS_DAEMON,
    ),
    # What starts it.
    ForeignKey(
        "events event triggers trigger_events trigger_event on_event trigger_on listen listens_to"
        " subscribe subscriptions",
        "write trigger: [pipe_completed:NAME]",
        "trigger",
        Reading.WHOLE,
    ),
    ForeignKey(
        "watch watch_path watch_paths watch_files watch_dir on_change on_file_change file_pattern "
        "file_patterns",
        'write for example trigger: ["file_changed:inbox/*.md"]',
    ),
    ForeignKey(
        "depends_on dependencies depends needs after upstream wait_for run_after follows"
        " depends_on_past context_from trigger_rule",
        "write trigger: [pipe_completed:NAME]",
    ),
    ForeignKey(
        "before downstream then next_pipe on_finish triggers_next chain chains",
        "write trigger: [pipe_completed:THIS] into the other pipe",
    ),
    ForeignKey(
        "hook webhook_trigger webhook_path push pull_request issues issue_comment"
        " workflow_dispatch repository_dispatch workflow_run workflow_call",
        _WEBHOOK,
    ),
    ForeignKey(
        "if condition conditions pre_check gate gates guard run_if only_if skip_if unless"
        " when_changed skip_if_unchanged skip_if_no_changes preflight pause_after quiet_hours"
        " active_hours business_hours days_off",
        "no condition is looked at before a run; write agent: command, and command: "
        "./check-and-run.sh",
    ),
    # Who runs it.
    ForeignKey(
        "engine runner harness cli agent_type agent_name assistant runtime backend client "
        "provider_cli",
        "write agent: claude, or another one of agents.toml(5)",
        "agent",
        Reading.AGENT,
    ),
    ForeignKey(
        "run script scripts cmd exec execute exec_start entrypoint shell bash bash_command args"
        " argv jobs program executable main no_agent python node uses",
        "write agent: command, and command: ./program --flag (no shell: sh -c 'a | b')",
    ),
    ForeignKey(
        "models model_name model_id model_override default_model llm llm_model llm_config ai_model",
        "write model: NAME, as the provider calls it",
        "model",
        Reading.TEXT,
    ),
    ForeignKey(
        "presets",
        'write preset: [first, second, "*"], with names of presets.toml(5)',
        "preset",
        Reading.WHOLE,
    ),
    ForeignKey(
        "profile profiles fallback fallbacks fallback_model fallback_models small_model "
        "model_preset",
        'write preset: [first, second, "*"], with names of presets.toml(5)',
    ),
    ForeignKey(
        "reasoning reasoning_effort thinking thinking_level thinking_budget thinking_effort"
        " model_reasoning_effort effort_level variant verbosity",
        "write effort: low, medium or high",
        "effort",
        Reading.TEXT,
    ),
    ForeignKey(
        "temperature top_p top_k seed stop stop_sequences frequency_penalty presence_penalty"
        " response_format tool_choice parallel_tool_calls",
        _OF_THE_AGENT,
    ),
    ForeignKey(
        "max_tokens max_output_tokens max_completion_tokens max_new_tokens context_window"
        " context_length num_ctx max_context_tokens max_input_tokens",
        f"limits: {{tokens: 200k}} bounds a run; of one answer, {_IN_PRESETS}",
    ),
    ForeignKey(
        "api_key api_token auth auth_token token access_token password",
        'a key has no place here; write api_key = "$NAME" into presets.toml(5), or the key into '
        ".env (mode 0600)",
    ),
    ForeignKey(
        "api_base base_url api_url endpoint model_provider model_url llm_url",
        _IN_PRESETS,
    ),
    ForeignKey(
        "session session_id session_mode session_target conversation conversation_id thread fork "
        "history_length",
        "write history: true to go on with the last session",
    ),
    # With what it runs.
    ForeignKey(
        "cwd cwds dir directory work_dir working_dir working_directory workspace workspaces chdir"
        " root root_dir project project_dir project_path repo repository_path checkout folder"
        " folders path base_dir add_dirs additional_directories worktree isolation isolated"
        " save_folder volume volumes mount mounts",
        _FOLDER,
    ),
    ForeignKey(
        "env environment envs env_vars env_variables environment_variables vars variables secret"
        " secrets credential credentials env_file environment_file dotenv pass_env",
        "write the variables into .env beside pipe.md, mode 0600",
    ),
    ForeignKey(
        "prompt prompts prompt_file message messages instruction instructions task goal query"
        " input inputs content text user_prompt initial_prompt template_prompt payload doc_md body"
        " system system_prompt append_system_prompt system_message context_files include includes"
        " import imports files",
        _IN_PROMPT,
    ),
    ForeignKey(
        "argument arguments params parameters default_args defaults options settings strategy "
        "matrix config_file",
        "`pxctl pipe run NAME --context JSON` hands values to one run; what is always the same "
        "belongs into the prompt",
    ),
    ForeignKey(
        "context skills skill plugins plugin extensions extension sub_agents subagent_type"
        " subtask agents handoffs handoff hooks rules initial_tools",
        _OF_THE_AGENT,
    ),
    ForeignKey(
        "mcp mcp_servers mcp_server mcp_config servers services",
        "give the agent its servers in its own configuration",
    ),
    # What it may do.
    ForeignKey(
        "permissions allow_apps deny_apps allow_windows deny_windows allow_content_types"
        " deny_content_types allow_raw_sql allow_frames time_range privacy_filter",
        _ENFORCED_BY,
        weight=Weight.NOT_ENFORCED,
    ),
    ForeignKey(
        "days",
        "for when it runs, write schedule: mon,thu at 9:00",
        weight=Weight.NOT_ENFORCED,
    ),
    ForeignKey(
        "allowed_tools allow_tools tools_allowed tools tool toolset toolsets enabled_tools"
        " available_tools disallowed_tools denied_tools deny_tools disabled_tools exclude_tools"
        " excluded_tools blocked_tools permission permission_mode permissions_mode"
        " permission_profile sandbox sandbox_mode sandbox_permissions approval approval_mode"
        " approval_policy ask_for_approval auto_approve require_approval yolo full_auto"
        " dangerously_skip_permissions trust trusted trusted_workspace network network_access"
        " internet allowed_domains allow_network safe_outputs capabilities read_only write_access"
        " allow_write allow deny roles scopes security tty privileged bots strict threat_detection",
        _ENFORCED_BY,
        weight=Weight.NOT_ENFORCED,
    ),
    # What becomes of it.
    ForeignKey(
        "notify notification notifications notify_on notify_on_failure notify_on_completion"
        " notify_on_success on_failure on_success on_error on_complete on_completion"
        " on_failure_callback on_success_callback failure_hook success_hook email emails"
        " email_on_failure email_on_retry mail_to alert alerts slack slack_webhook discord"
        " telegram teams webhook webhooks webhook_url channel channels deliver delivery announce"
        " announcement report_to reply_to recipients to callback callback_url push_notification"
        " sla continue_on_error",
        _TELL,
    ),
    ForeignKey(
        "output outputs output_dir output_directory output_path output_file output_format"
        " output_schema save_to save_output result result_file report report_path destination"
        " format log logs log_file log_path log_dir stdout stderr standard_output standard_error"
        " max_log_size upload",
        _OUTPUT,
    ),
    ForeignKey(
        "keep retention keep_days keep_runs max_history history_limit"
        " successful_jobs_history_limit failed_jobs_history_limit cleanup delete_after_run ttl"
        " ttl_seconds_after_finished",
        "pipes.keep_days of pxd.toml(5) says how long executions are kept",
    ),
    ForeignKey(
        "hours minutes seconds",
        "write for example schedule: every 2h, or daily at 9:00",
    ),
    ForeignKey(
        "steps",
        "write for example limits: {turns: 50}; or agent: command, and command: ./program --flag",
        "limits.turns",
        Reading.TEXT,
    ),
    ForeignKey(
        "memory",
        "write for example limits: {memory: 512MB}; or history: true to go on with the "
        "last session",
        "limits.memory",
        Reading.MEMORY,
    ),
    ForeignKey(
        "resources resource_limits",
        "write for example limits: {memory: 512MB, cpu_percent: 50}",
    ),
    ForeignKey(
        "tool_timeout step_timeout command_timeout idle_timeout silence_timeout stall_timeout "
        "request_timeout",
        "timeout: bounds the whole run, and nothing else does",
    ),
    ForeignKey(
        "delay",
        "write for example retries: {max: 3, delay: 30s}",
        "retries.delay",
        Reading.TEXT,
    ),
    ForeignKey(
        "max",
        "write for example retries: {max: 3}",
        "retries.max",
        Reading.TEXT,
    ),
    ForeignKey(
        "weekly_cost monthly_budget",
        "write for example budget: {daily_cost: 2.50}",
    ),
    ForeignKey(
        "runs_on image container executor platform os arch host hostname node_selector",
        "it runs on this machine, as the daemon's user",
    ),
    ForeignKey(
        "resume continue continue_session keep_session persist_session reuse_session",
        "write history: true to go on with the last session",
        "history",
        Reading.ON,
    ),
    ForeignKey(
        "no_session new_session fresh_session ephemeral stateless",
        "leave history out: each run has a session of its own",
        "history",
        Reading.OFF,
    ),
    ForeignKey(
        "mode log_level debug verbose quiet trace",
        _OF_THE_AGENT,
    ),
    ForeignKey(
        "dry_run",
        "`pxctl pipe show NAME --rendered` prints the prompt, `pxctl pipe validate NAME` checks "
        "all else",
    ),
    ForeignKey(
        "lookback lookback_hours window window_hours time_window window_minutes since period_start",
        "the time range begins where the last one ended; TIME RANGE in pipe.md(5) says how",
    ),
    # Of the family that this format comes from.
    ForeignKey(
        "connections",
        "the agent reaches what its own configuration, .env and tools give it",
    ),
    ForeignKey(
        "run_in subagent config",
        "write what it needs into the prompt",
    ),
    ForeignKey(
        "event_read_only enterprise_managed",
        _OF_THE_AGENT,
        weight=Weight.MINOR,
    ),
    # What describes the file.
    ForeignKey(
        "author authors maintainer maintainers owner owners version schema schema_version"
        " api_version kind type id uuid dag_id job_id key slug permalink url layout alias aliases"
        " tag tags category categories keyword keywords label labels topic topics icon emoji color"
        " colour logo cover thumbnail license licence copyright created created_at created_on"
        " created_by updated updated_at updated_on modified last_modified lastmod last_updated"
        " date publish summary excerpt subtitle abstract display_name short_description homepage"
        " repository source source_url source_slug source_hash installed_version link links lang"
        " language locale weight order sort toc math comments series css_class css_classes parent"
        " parents up related featured hidden template metadata meta annotations compatibility"
        " requirements min_version argument_hint arguments_hint hint usage example examples"
        " when_to_use when_not_to_use target infer user_invocable user_invokable"
        " disable_model_invocation hide_from_slash_command_tool apply_to always_apply glob globs"
        " paths exclude_agent artifacts notes note comment todo changelog tracker_id stability"
        " difficulty audience rating estimated_time",
        "",
        weight=Weight.MINOR,
    ),
)
"""First what is looked for most. No word stands twice, and none is a key of ours."""


def plain(word: str) -> str:
    """Return a word as it is compared: without case, hyphens, underscores and dots."""
    return re.sub(r"[-_. ]", "", word).lower()


_BY_WORD = {plain(word): row for row in TABLE for word in row.words.split()}


def is_own(key: str) -> bool:
    """Say whether a key is somebody's own: `x-…` means nothing here, and is not told."""
    return key.lower().startswith("x-")


def find(key: str) -> ForeignKey | None:
    """Return the row of a key, None where it is none that is known."""
    return _BY_WORD.get(plain(key))


_UNITS: tuple[tuple[str, frozenset[Reading]], ...] = (
    ("ms|millis?|milliseconds?", frozenset((Reading.MILLISECONDS, Reading.EVERY_MILLISECONDS))),
    ("s|secs?|seconds?", frozenset((Reading.SECONDS, Reading.EVERY_SECONDS))),
    ("m|mins?|minutes?", frozenset((Reading.MINUTES, Reading.EVERY_MINUTES))),
    ("h|hrs?|hours?", frozenset((Reading.HOURS, Reading.EVERY_HOURS))),
    ("d|days?", frozenset((Reading.DAYS, Reading.EVERY_DAYS))),
    ("w|weeks?|months?", frozenset()),
)
"""The last word of a key that names the unit of its number, and how such a number is read."""


def _readings_of_unit(key: str) -> frozenset[Reading] | None:
    """Return how a key is read whose name ends with a unit; None where it does not."""
    for words, readings in _UNITS:
        if re.search(rf"(?:[-_. ]|(?<=[a-z])(?=[A-Z]))(?i:{words})$", key):
            return readings
    return None


def find_near(key: str, own_keys: Iterable[str]) -> str | ForeignKey | None:
    """Return the key of ours, or the row, that a key was most likely meant for; None where none
    is near.
    """
    readings = _readings_of_unit(key)
    if readings is not None:
        # `timeout_weeks` is near to `timeout` and `timeout_seconds`, whose numbers are of another
        # unit.
        of_the_unit = [word for word, row in _BY_WORD.items() if row.reading in readings]
        near = nearest(plain(key), of_the_unit, 0.88)
        return None if near is None else _BY_WORD[near]
    own_words = {plain(own): own for own in own_keys}
    near = nearest(plain(key), [*own_words, *_BY_WORD], 0.8)
    if near in own_words:
        return own_words[near]
    # A word of theirs is guessed only from one that is almost the same: there are many of them.
    near = nearest(plain(key), _BY_WORD, 0.88)
    return None if near is None else _BY_WORD[near]


# -- values ----------------------------------------------------------------------------------------

_TRUE = frozenset(("true", "yes", "on", "1"))
_FALSE = frozenset(("false", "no", "off", "0"))
_RUNS = frozenset(("active", "enabled", "on", "running", "live", "published", "ready", "scheduled"))
_RESTS = frozenset(
    ("paused", "disabled", "inactive", "off", "stopped", "suspended", "draft", "archived", "todo")
)
_AGENTS = {
    "claude": "claude", "claudecode": "claude", "claudecli": "claude", "codex": "codex", "codexcli":
    "codex", "gemini": "gemini", "geminicli": "gemini", "opencode": "opencode", "qwen": "qwen",
    "qwencode": "qwen", "pi": "pi", "aider": "aider", "llm": "llm", "command": "", "shell": "",
    "bash": "",
}  # fmt: skip


_ASKS_NOTHING = {"permissions": frozenset(("admin",)), "privacyfilter": _FALSE, "subagent": _FALSE}
"""Values with which a key asks for what is so anyway."""


def asks_nothing(key: str, value: Any) -> bool:
    """Say whether a key with this value asks for nothing."""
    if isinstance(value, str):
        word = value.strip().lower()
        return not word or word in _ASKS_NOTHING.get(plain(key), ())
    return value is None or value in ([], {})


def _words(value: Any) -> Iterator[str]:
    """Yield a text, or the text of a list of one."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, int | float) and not isinstance(value, bool):
        # A change of a pipe is sent as JSON, whose numbers are none of YAML's texts.
        value = str(value)
    if isinstance(value, str) and value.strip():
        yield value.strip()


def _flag(value: Any, *, opposite: bool) -> Iterator[bool]:
    for word in _words(value):
        if word.lower() in _TRUE | _FALSE:
            yield (word.lower() in _TRUE) is not opposite


def _state(value: Any) -> Iterator[bool]:
    for word in _words(value):
        if word.lower() in _RUNS | _RESTS:
            yield word.lower() in _RUNS


_DECIMAL = re.compile(r"(?:[0-9]{1,15}(?:\.[0-9]{0,15})?|\.[0-9]{1,15})")
_SIZES = (
    ("w", Decimal(604800)),
    ("d", Decimal(86400)),
    ("h", Decimal(3600)),
    ("m", Decimal(60)),
    ("s", Decimal(1)),
)
_SECONDS_OF = {**dict(_SIZES), "ms": Decimal("0.001")}


def _number_of(text: str) -> Decimal | None:
    return Decimal(text) if _DECIMAL.fullmatch(text) else None


def _span_words(seconds: Decimal) -> str:
    """Write a length of time in the largest unit in which it is whole, to the millisecond."""
    for unit, size in _SIZES[1:]:
        if seconds % size == 0:
            return f"{int(seconds / size)}{unit}"
    return f"{seconds.normalize():f}s"


def _time(unit: str, prefix: str = "") -> Callable[[Any], Iterator[str]]:
    """Return what reads a length of time; a number alone is one of `unit`, also with a fraction."""

    def read(value: Any) -> Iterator[str]:
        for word in _words(value):
            number = _number_of(word)
            if number is None:
                # It has a unit of its own, or is no time; the caller finds out.
                yield f"{prefix}{word}"
            elif word.isdecimal() and unit != "ms":
                yield f"{prefix}{word}{unit}"
            else:
                seconds = (number * _SECONDS_OF[unit]).quantize(_SECONDS_OF["ms"])
                yield f"{prefix}{_span_words(seconds)}"

    return read


def _megabytes(value: Any) -> Iterator[str]:
    for word in _words(value):
        yield f"{word}MB" if _number_of(word) is not None else word


_BYTES_AT_LEAST = 2**20  # a smaller number without a unit is not one of bytes


def _memory(value: Any) -> Iterator[str]:
    for word in _words(value):
        number = _number_of(word)
        if number is None:
            # Kubernetes leaves the B of GiB out.
            yield re.sub(r"(?<=[kmg])i$", "iB", word, flags=re.IGNORECASE)
        elif number >= _BYTES_AT_LEAST:
            yield word


def _share(value: Any) -> Iterator[str]:
    """Yield the percent of one processor that `50%` or `500m` (thousandths of a processor)
    means.
    """
    for word in _words(value):
        number = _number_of(word[:-1].strip())
        if number is not None and word[-1] in "%m":
            percent = number if word[-1] == "%" else number / 10
            yield f"{percent.normalize():f}"


def _processors(value: Any) -> Iterator[str]:
    yield from _share(value)
    for word in _words(value):
        number = _number_of(word)
        if number is not None:
            yield f"{(number * 100).normalize():f}"


def _percent(value: Any) -> Iterator[str]:
    for word in _words(value):
        yield word.removesuffix("%").strip()


def _retries(value: Any) -> Iterator[Any]:
    """Yield a number of retries; of a map, the number that it holds, and its delay where that
    has a unit.
    """
    if not isinstance(value, Mapping):
        yield from _words(value)
        return
    by_word = {plain(str(key)): meant for key, meant in value.items()}
    for name in ("max", "limit", "count", "times", "retries", "maxretries"):
        for most in _words(by_word.get(name)):
            for delay in _words(by_word.get("delay")):
                if _number_of(delay) is None:
                    yield {"max": most, "delay": delay}
            yield most


def _schedules(value: Any) -> Iterator[str]:
    """Yield what a schedule of other programs may be here, the most likely first."""
    if isinstance(value, Mapping):
        # `on: {schedule: [{cron: …}]}` of GitHub, `{kind: cron, expr: …}` of others.
        for name in ("cron", "schedule", "expr", "expression", "every", "interval", "at"):
            yield from _schedules(value.get(name))
        # `{kind: every, everyMs: 60000}`: the name of the key has the unit.
        for key, meant in value.items():
            row = _BY_WORD.get(plain(str(key)))
            if row is not None and row.reading in _INTERVALS:
                yield from _READERS[row.reading](meant)
        return
    if isinstance(value, list):
        # A pipe has one schedule: several have no counterpart.
        if len(value) == 1:
            yield from _schedules(value[0])
        return
    for word in _words(value):
        text = re.sub(r"^@every\s+", "every ", word)
        if text.isdecimal():
            continue  # of which unit, it does not say
        if text[0].isdecimal():
            yield f"every {text}"
        yield text
        if text.isalpha():
            yield f"@{text}"  # `hourly` at the full hour, as cron's macro means it
        yield f"every {text}"
        yield f"at {text}"
        yield f"daily at {text}"


def _agent(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = value.get("id") or value.get("name") or value.get("type")
    for word in _words(value):
        agent = _AGENTS.get(plain(word))
        if agent:
            yield agent


_READERS: dict[Reading, Callable[[Any], Iterator[Any]]] = {
    Reading.NOTHING: lambda _: iter(()),
    Reading.TEXT: _words,
    Reading.WHOLE: lambda value: iter((value,)),
    Reading.ON: lambda value: _flag(value, opposite=False),
    Reading.OFF: lambda value: _flag(value, opposite=True),
    Reading.STATE: _state,
    Reading.MILLISECONDS: _time("ms"),
    Reading.SECONDS: _words,
    Reading.MINUTES: _time("m"),
    Reading.HOURS: _time("h"),
    Reading.DAYS: _time("d"),
    Reading.MEMORY: _memory,
    Reading.MEGABYTES: _megabytes,
    Reading.PROCESSORS: _processors,
    Reading.PERCENT: _percent,
    Reading.SHARE: _share,
    Reading.RETRIES: _retries,
    Reading.SCHEDULE: _schedules,
    Reading.EVERY_MILLISECONDS: _time("ms", "every "),
    Reading.EVERY_SECONDS: _time("s", "every "),
    Reading.EVERY_MINUTES: _time("m", "every "),
    Reading.EVERY_HOURS: _time("h", "every "),
    Reading.EVERY_DAYS: _time("d", "every "),
    Reading.AGENT: _agent,
}


_INTERVALS = frozenset((
    Reading.EVERY_MILLISECONDS, Reading.EVERY_SECONDS, Reading.EVERY_MINUTES, Reading.EVERY_HOURS,
    Reading.EVERY_DAYS,
))  # fmt: skip


def suggestions(row: ForeignKey, value: Any) -> Iterator[dict[str, Any]]:
    """Yield what may stand in the place of a key with this value, as keys of ours; the caller
    tries each of them.
    """
    key, _, inner = row.key.partition(".")
    for found in _READERS[row.reading](value):
        keys = {key: {inner: found} if inner else found}
        if row.words == "on":
            # GitHub's times are UTC.
            keys["timezone"] = "UTC"
        yield keys


def schedules(value: Any) -> Iterator[str]:
    """Yield what a list or map that stands for a schedule may be here, as texts; the caller
    tries each of them.
    """
    yield from _schedules(value)


# -- events ----------------------------------------------------------------------------------------

FOREIGN_EVENTS: dict[str, str] = {
    **dict.fromkeys(
        ("meeting_started", "meeting_ended", "workflow_ready", "workflow_event"), _WEBHOOK
    ),
    **dict.fromkeys(
        (
            "push",
            "pull_request",
            "issues",
            "issue_comment",
            "release",
            "workflow_dispatch",
            "workflow_run",
            "webhook",
            "email",
            "message",
            "slack",
            "http",
            "api",
            "issue_opened",
            "pr_opened",
            "commit",
        ),
        _WEBHOOK,
    ),
    **dict.fromkeys(
        (
            "schedule",
            "scheduled",
            "cron",
            "interval",
            "time",
            "timer",
            "daily",
            "hourly",
            "weekly",
            "every",
        ),
        "write for example schedule: daily at 9:00",
    ),
    **dict.fromkeys(
        ("manual", "none", "user", "on_demand"), "leave trigger out: by hand it runs anyway"
    ),
    **dict.fromkeys(
        ("file", "file_created", "file_modified", "watch"),
        'write for example trigger: ["file_changed:inbox/*.md"]',
    ),
    **dict.fromkeys(
        ("startup", "boot", "reboot", "login", "on_start"),
        "write for example schedule: every 1h, or run it by hand",
    ),
    **dict.fromkeys(
        ("always", "always_on", "model_decision", "model", "glob", "agent_requested"),
        "leave trigger out: an agent's rules are no pipes",
    ),
}
"""Events that other programs tell of, and nothing here does by itself, with the cure."""

TEMPLATE_WORDS = re.compile(
    r"\{\{ *(?:start_time|end_time|date|time|today|timezone|timezone_offset|args|input|arguments) "
    r"*\}\}"
    r"|\$ARGUMENTS\b|\$\{\{[^{}\n]{1,80}\}\}"
)
"""What other programs fill into a prompt. Here it reaches the agent as it stands."""

"""The commented configuration that ``gridshift init`` writes. It is text only; what the keys mean is checked elsewhere.

A line that begins with ``#`` and no space is a setting with its default or an example value: remove the ``#`` to use it.
"""

EXAMPLE = """\
# gridshift.toml
#
# Lines with '#' and no space after it are settings; remove the '#' to use one. Without any, gridshift runs one local region.
# Any setting of [server], [planning], [fx], [agents], [energy] and [replay] can also come from the environment, which wins
# over this file: GRIDSHIFT_SERVER__PORT=8701. Relative paths are meant from the folder of this file. Check the file with
# 'gridshift doctor'.
# Durations are written "90s", "15m", "8h", "2d"; powers are W; times carry an offset.

#[server]
# Addresses other than loopback need an API token first: gridshift tokens create NAME
#host = "127.0.0.1"
#port = 8700
# How jobs on the clusters reach this control plane; empty means http://127.0.0.1:<port>.
#public_url = ""
# Packages, logs, results, the SQLite file and the server's secret.
#data_dir = ".gridshift"
# Empty means SQLite in data_dir; for PostgreSQL keep the URL, with its password, in a variable or a file (not both):
# postgresql+psycopg://user:password@host/database
#database_url_env = ""
#database_url_file = ""
#max_body_mb = 10.0
#max_package_mb = 100.0
# Storage that every region mounts, for jobs' checkpoints; empty means <data_dir>/checkpoints.
#checkpoint_root = ""

#[planning]
# gridshift plans all jobs together. Policies as published place one job at a time in one region and look at carbon alone:
# run-now, lowest-slot, lowest-window, carbon-time, wait-awhile, ecovisor; with ":price" after the name (not run-now) they
# follow the price. "cap-quota/NAME" puts a quota on GPUs, which follows carbon, around the policy NAME; "cap-quota" alone
# around run-now.
#policy = "gridshift"
# 5, 15, 30 or 60
#slot_minutes = 15
#horizon_hours = 48
#currency = "EUR"
# What a tonne of CO2e is worth, in the currency above; 0 plans by price alone.
#carbon_price_per_tonne = 0.0
# What money counts beside carbon; 0 plans by carbon alone.
#price_weight = 1.0
# Budgets of all regions together for each UTC day, in kg CO2e and in the currency above; 0 for none. gridshift keeps them in
# what it plans; what ran earlier that day, or runs now and cannot be paused, is not counted. A deadline comes first. Published
# policies ignore them.
#daily_carbon_kg = 0.0
#daily_cost = 0.0
# What an hour after its deadline costs a job, in the currency above.
#late_cost_per_h = 1000.0
# Assumed of jobs that do not say.
#default_runtime = "1h"
#default_gpu_power_w = 400.0
#default_cpu_power_w = 50.0
# Where jobs without gridshift.* metadata go; empty means the first region.
#default_region = ""
#move_cost_per_gb = 0.02
#move_gb_per_s = 0.1
# The shortest stretch worth starting a pausable job for.
#min_chunk = "15m"
# From a launch until a job runs: what Ray and the runtime environment take.
#launch_time = "10s"
# Kept in reserve before a deadline: a share of the run time, which is an estimate, and a fixed time.
#runtime_slack = 0.1
#deadline_margin = "60s"

# Fixed rates: what one unit of the key is in the planning currency.
#[fx]
#USD = 0.92

# One [[region]] for each Ray cluster.
#[[region]]
#name = "eu-west"
# The cluster's dashboard address.
#address = "http://127.0.0.1:8265"
# The cluster's Ray token, if it wants one: the name of a variable, or a file.
#token_env = ""
#token_file = ""
# GPUs that batch may use; left out: what the cluster reports.
#gpus = 8
# Jobs placed at once; left out: no bound.
#max_jobs = 100
# Limit of the site in W, 0 for none.
#power_limit_w = 0
# Power of the whole site over power of its computers.
#pue = 1.2
#currency = "EUR"
# "average" or "marginal"; regions with different kinds are never compared on carbon.
#carbon_signal = "average"
# The tier of jobs that name none, also of those without gridshift.* metadata: flex-0 (never touched) .. flex-3. The latter
# still start at once and are never paused, but limits and events may cap them by what the tier may lose. Empty: flex-0 for
# them, flex-1 for others. The one of planning.default_region counts, where such jobs run.
#default_tier = ""
# Where this region's nodes mount the checkpoint storage; empty means server.checkpoint_root.
#checkpoint_root = ""
# Seconds between looks while something runs there.
#observe_s = 1.0
# The calendar that people there keep, for forecasts; empty: the tariff's, or UTC.
#timezone = ""

# GPUs of several types, one table for each type and branch of the power tree; without any they are all alike, and with some the
# region's gpus are their sum. A job is sent to a type by Ray's node label ray.io/accelerator-type, which has to say the same.
#[[region.gpu_pool]]
#type = "H100"
#gpus = 8
# Limit of these GPUs together, W at the meter, 0 for none.
#power_limit_w = 0
# What a job draws on them, relative to the draw it states.
#draw = 1.0
#branch = "rack-1"

# The power tree below the site: racks or PDUs with a limit of their own (W that their GPUs draw, without cooling; 0 for
# none) and what cools them. A node is on the branch that its Ray node label gridshift.branch names, or that [[region.node]]
# names for its hostname.
#[[region.branch]]
#name = "rack-1"
#power_limit_w = 0
#cooling_zone = "hall-a"
#[[region.node]]
#hostname = "gpu-node-1"
#branch = "rack-1"

# Meters: where there is one, it is the truth; without one, power is GPU watts x pue. scope is "site", "branch" or
# "cooling_zone", and of names the branch or zone. unit is "W", "kWh" (counter = true, the default for kWh: counted since some
# time past; false: the energy of each cadence) or "degC". source is "prometheus" (a query with one value), "push" (POST
# /v1/meters/<region>/<name> {"at": "...", "value": ...}) or "csv" (a file that grows, with a header).
#[[region.meter]]
#name = "main"
#unit = "kWh"
#source = "push"
# Seconds from one reading to the next, and by which a reading is late; after three cadences without one, power is unknown.
#cadence_s = 60.0
#delay_s = 0.0
#[[region.meter]]
#name = "rack-1-pdu"
#scope = "branch"
#of = "rack-1"
#source = "prometheus"
#url = "http://prometheus:9090"
#query = "sum(pdu_power_kilowatts{rack='1'})"
# What turns the source's numbers into the unit: 1000 for kW.
#factor = 1000.0
#cadence_s = 15.0
# Implausible above this, or when it changes by more from one reading to the next (in the unit; W for kWh); 0: assumed.
#max_value = 0
#max_jump = 0
# A bearer token, if the server wants one: the name of a variable, or a file.
#token_env = ""
#token_file = ""
#[[region.meter]]
#name = "inlet"
#scope = "cooling_zone"
#of = "hall-a"
#unit = "degC"
#source = "csv"
#path = "inlet.csv"
#time_column = "time"
#value_column = "value"

# A chain of feeds each: the first that is fresh and plausible wins. signals/README.md lists the feeds and their options. Any
# entry may have max_age (when its last value no longer counts as fresh) and source (the name its values are kept under); keys
# come from <name>_env or <name>_file.
#[[region.price]]
#feed = "energy_charts"
#bzn = "DE-LU"
#[[region.price]]
#feed = "synthetic"
#[[region.carbon]]
#feed = "synthetic"
# Feeds of the grid's load, for a [[trigger]] that goes by it.
#[[region.load]]
#feed = "csv"
#file = "load.csv"

# What this site really pays; without it the planner sees the wholesale price. Amounts are per MWh or, with keys that end in
# _per_kwh, per kWh, all without VAT. What the contract does not have is left out.
#[region.tariff]
# "fixed" (energy_per_mwh), "time_of_use" ([[region.tariff.period]]) or "indexed" (wholesale x factor + adder_per_mwh).
#type = "time_of_use"
#currency = "EUR"
#timezone = "Europe/Berlin"
# A fraction, applied last, to everything.
#vat = 0.19
#taxes_per_mwh = 20.5
# One grid fee: grid_fee_per_mwh = 35.0; or hours as below. Each hour needs one fee, and one price.
# Holidays count as Sundays.
#holidays = ["2026-12-25", "2026-12-26"]
# A charge on the month's highest mean draw over so many minutes (5, 10, 15, 30 or 60).
#demand_charge_per_kw_month = 12.0
#demand_interval_minutes = 15
# A peak in kW that is reached or paid anyway, in every month or in peak_month = "2026-12"; "learned": what is measured.
#peak_kw = 310.0
# days and months may be ranges and lists; a period that passes midnight means both ends of the same days.
#[[region.tariff.period]]
#name = "day"
#days = "mon-fri"
#from = "08:00"
#to = "20:00"
#energy_per_mwh = 180.0
#[[region.tariff.period]]
#name = "night"
#days = "mon-fri"
#from = "20:00"
#to = "08:00"
#energy_per_mwh = 95.0
#[[region.tariff.period]]
#name = "weekend"
#days = "sat,sun"
#energy_per_mwh = 80.0
#[[region.tariff.grid_fee]]
#name = "winter"
#months = "nov-mar"
#fee_per_mwh = 42.0
#[[region.tariff.grid_fee]]
#name = "summer"
#months = "apr-oct"
#fee_per_mwh = 28.0
# The hours in which draw counts for the demand charge; without them all do.
#[[region.tariff.demand_window]]
#name = "evening"
#days = "mon-fri"
#months = "nov-feb"
#from = "17:00"
#to = "20:00"

#[[region]]
#name = "nordics"
#address = "http://10.0.1.1:8265"
#[[region.price]]
#feed = "energy_charts"
#bzn = "SE4"
#[[region.carbon]]
#feed = "synthetic"

# Interactive serving in the region above, and what its users were promised: while that is at risk, batch on the same GPUs,
# machines or branch (left out: in the region) does not start, is capped, frozen, asked to pause, and comes back after a calm.
#[[region.serving]]
#name = "chat"
# Whose metrics they are: "vllm", "sglang", "triton", "ray-serve"; left out: the slo tables name the server's own.
#preset = "vllm"
# "metrics" reads the server's own page, "prometheus" asks a Prometheus at url.
#source = "metrics"
#url = "http://chat:8000/metrics"
# Which of its series, as PromQL's label matchers.
#match = 'model_name="llama"'
#token_env = ""
#hostnames = ["gpu-node-1"]
#gpu_uuids = ["GPU-11111111-2222-3333-4444-555555555555"]
# How far batch goes while the metrics are not known ("hold", "cap", "pause"), and whether it runs or waits while a promise is
# not kept even without it.
#when_unknown = "cap"
#when_unmet = "run"
#scrape_s = 1.0
#stale_s = 10.0
# What plans leave free for it of the region's GPUs and power limit: always the floors (GPUs; W at the meter) and, where
# load_per_gpu is given (requests that one GPU serves at the same time), what it needs in headroom_quantile of such hours, as
# learned by time of day and week; all of max_gpus (left out: the number of gpu_uuids) where too little is known of it.
#floor_gpus = 1
#floor_w = 700.0
# In an event that is an emergency, once batch has given all that it may, its GPUs are capped too, never below these floors.
#allow_emergency = false
#load_per_gpu = 32.0
#max_gpus = 4
#headroom_quantile = 0.95
# Draw of one of its GPUs, W at the GPU; left out: default_gpu_power_w.
#gpu_power_w = 700.0
# Its requests at work and waiting, where no preset names them: a gauge, or a counter (then load_per_gpu is requests a second).
#load_gauge = ""
#load_counter = ""
# "ttft", "inter_token" or "e2e" (s, with a percentile), "queue" (requests that wait) or "error_rate" (a share).
#[[region.serving.slo]]
#metric = "ttft"
#percentile = 0.99
#limit = 0.5
#[[region.serving.slo]]
#metric = "queue"
#limit = 20
# What of it may be turned down while it has little to do and keeps its promises; nothing is, without this section. With cap its
# gpu_uuids may be capped (for a minute at a time), by its own curve as measured: two points or more, of all of it but power_w,
# which is of one GPU, without a cap. Then what is promised stays below latency_share of its limit, and it can do demand_margin
# times what is expected. At any risk all is given back at once, and left alone until calm_s without one (longer each time).
#[region.serving.tuning]
#cap = true
#latency_share = 0.8
#demand_margin = 1.25
# Nothing is turned down while a promise burns this share of its budget.
#most_burn = 0.5
#calm_s = 300.0
# An address of your own that takes PUT {"max_concurrency": N} and answers with what holds then (vLLM has none that does).
#concurrency_url = "http://chat:8001/limit"
#concurrency_token_env = ""
#concurrency_token_file = ""
#max_concurrency = 256
# Needs preset = "ray-serve" and an application deployed with external_scaler_enabled: true. dashboard_url left out: the
# region's own; gpus_per_replica = 1.0 for a replica of one GPU, left out: as Ray says.
#replicas = false
#application = ""
#deployment = ""
#min_replicas = 1
#max_replicas = 0
#replicas_down_s = 600.0
#dashboard_url = ""
#token_env = ""
#token_file = ""
# ttft_s and e2e_s too where those are promised.
#[[region.serving.tuning.point]]
#concurrency = 32
#power_w = 560.0
#tokens_per_s = 3300.0
#inter_token_s = 0.009
#ttft_s = 0.12
#[[region.serving.tuning.point]]
#concurrency = 128
#power_w = 670.0
#tokens_per_s = 7000.0
#inter_token_s = 0.0165
#ttft_s = 0.35

# Teams, by the name that jobs give as gridshift.team: never more GPUs at once than quota_gpus (left out: no bound), and where
# jobs compete the team with the least GPU time for its share goes first.
#[[team]]
#name = "vision"
#quota_gpus = 16
#share = 2.0

# Scheduled shifts: from a crontab time on, flexible work of one region belongs in another.
#[[shift]]
#name = "night-to-north"
#cron = "0 22 * * *"
#timezone = "Europe/Berlin"
#duration = "8h"
#from = "eu-west"
#to = "nordics"

# Senders of signed demand response events (Standard Webhooks), to POST /v1/webhooks/<source>.
#[[webhook]]
#source = "utility"
#secret_env = "UTILITY_WEBHOOK_SECRET"
# All its events are emergencies, not only those that say so by "emergency": true.
#emergency = false

# Utilities and aggregators whose demand response events limit a site ('gridshift events explain' says how a message is read).
# protocol is "openadr-3.1", "openadr-3.0", "openadr-2.0b" (asked at url), "webhook" (signed, to POST /v1/webhooks/<name>) or
# "pointer" (unsigned hints to the same path; what they point to is fetched from url/<id> with the client secret as key).
#[[event_source]]
#name = "grid"
#protocol = "openadr-3.1"
#region = "eu-west"
# Only this branch of the region; left out: the whole site.
#branch = "rack-1"
# What was agreed; what is not is left out, and nothing that needs it is made up. The load that shares and reductions count from
# (W at the meter; left out: the load when an event is first heard of), what serving needs, what levels mean, which way relative
# dispatches go, what times without offset and powers without unit mean.
#site = "hall-a"
#reference_w = 2000000.0
#serving_floor_w = 300000.0
#simple_levels = { 1 = "-10% of baseline", 2 = "-25% of baseline", 3 = "cap = serving_floor_w" }
#relative_sign = "positive value = reduce by"
#timezone = "Europe/Berlin"
#power_unit = "kW"
# Where its events overlap, "strictest" wins, or "priority". Limits of several sources: always the strictest.
#overlap = "strictest"
# Events that are marked as tests: "log" records them, "act" acts on them.
#test_events = "log"
# All its events are emergencies: serving with allow_emergency is capped where batch is not enough. Without this, those that say
# so: ALERT_GRID_EMERGENCY of OpenADR 3, "emergency": true in signed webhooks.
#emergency = false
# How soon a limit must hold: "10s", "30s", "10min", "30min", "2h" or "day-ahead"; and how long the way down and the way back
# may take where a message does not say.
#response = "10min"
#ramp_s = 0.0
#recovery_s = 900.0
# An event without end that has lasted so long is an alarm; it is never released by that.
#watchdog = "4h"
# Beyond this between its clock and ours seconds cannot be promised.
#max_skew_s = 5.0
# In 2.0b it ends before the names of services: "https://vtn.example/OpenADR2/Simple/2.0b".
#url = "https://vtn.example/openadr3/3.1.0"
#client_id = "gridshift"
#client_secret_env = "GRID_CLIENT_SECRET"
#client_secret_file = ""
# Left out: asked of the sender.
#token_url = ""
#scope = ""
# A certificate of ours (2.0b wants one), and the authorities that sign theirs; empty: those of the system.
#client_cert_file = ""
#client_key_file = ""
#ca_file = ""
#verify_tls = true
# Programs by name or id; empty: all.
#programs = ["curtailment"]
#ven_name = "gridshift"
# Ours as the sender knows us, in 2.0b; empty: it gives one.
#ven_id = ""
#targets = []
# In 2.0b only where the sender does not say how often.
#poll_every = "30s"
# Where its notifications reach us, https: .../v1/openadr3/callback. Empty: only polled.
#callback_url = ""
#[[event_source]]
#name = "aggregator"
#protocol = "pointer"
#region = "eu-west"
#url = "https://api.aggregator.example/dispatches"
#api_key_header = "X-API-Key"
#client_secret_env = "AGGREGATOR_KEY"
# Where the dispatches are listed, asked every poll_every: a webhook may be lost. Empty: only what webhooks point to is fetched.
#list_url = "https://api.aggregator.example/dispatches"
# Other hosts that may be fetched from; a name that leads to a private address has to stand here.
#allow_hosts = []
#[[event_source]]
#name = "signed"
#protocol = "webhook"
#region = "eu-west"
#secret_env = "SIGNED_WEBHOOK_SECRET"
#secret_envs = []
#secret_file = ""
#secret_files = []

# Prices, or the grid's load, that make events of our own, of the source "trigger NAME". Only published prices count.
# "price-above" acts from a price of above_per_mwh (the region's currency, as it is paid) until one below release_per_mwh (left
# out: the same), for at least least and at most longest; "price-highest" in the highest_hours dearest hours of a day, once all
# of it is known.
#[[trigger]]
#name = "spike"
#region = "eu-west"
#branch = "rack-1"
#kind = "price-above"
#above_per_mwh = 500.0
#release_per_mwh = 400.0
#least = "15m"
#longest = "4h"
# A share of reference_w (left out: of the load when the event is decided on), "cap = serving_floor_w" or "40 kW"; or limit_w in
# W.
#limit = "-25% of baseline"
#reference_w = 2000000.0
#serving_floor_w = 300000.0
#response = "10min"
#ramp_s = 0.0
#recovery_s = 900.0
# When it may act, and how often and for how long in each "month" or "season" (the months without a break; else the year).
#months = "jun-sep"
#hours = [14, 20]
#timezone = "Europe/Berlin"
#max_events = 12
#max_hours = 40.0
#per = "season"
# Recorded, and not acted on.
#test = false
#[[trigger]]
#name = "dear-hours"
#region = "eu-west"
#kind = "price-highest"
#highest_hours = 3
#limit_w = 1000000.0
# "load-above" (above_mw, release_mw) and "load-highest" (highest_hours, above_mw) go by [[region.load]], feeds as those of
# prices are, and by its forecast. With of_month_peak only hours count that may come so near to the month's highest load: those
# that may set a coincident peak, by which grid fees are shared out.
#[[trigger]]
#name = "coincident-peak"
#region = "eu-west"
#kind = "load-highest"
#highest_hours = 2
#of_month_peak = 0.97
#above_mw = 60000.0
#months = "jun-sep"
#limit = "-50% of baseline"

# What demand response pays and costs, and how it is measured; for the events of the sources named ([[event_source]],
# [[webhook]], or "api" for 'gridshift events create'). What the contract does not say is left out. Reports ('gridshift events
# report') and what an event is worth, told before it begins, go by it.
#[[programme]]
#name = "interruptible"
#event_source = ["grid"]
#currency = "EUR"
# Paid for each kWh delivered (up to so many times what was committed), and once an event for each kW by performance; told, and
# not counted: for each kW of the season. The penalty is for each kWh of "shortfall" or, with a firm service level, "excess".
#per_kwh = 0.5
#paid_up_to = 1.0
#per_kw = 0.0
#per_kw_season = 0.0
#penalty_per_kwh = 0.0
#penalty_on = "shortfall"
# Below this performance nothing is paid.
#minimum_performance = 0.0
#opt_out_cost = 0.0
# The reduction promised, W; left out: the baseline less an event's limit.
#commitment_w = 500000.0
# When the programme may call; an event outside is told to be so.
#notice = "30m"
#months = "may-oct"
#hours = [16, 21]
#max_event_hours = 4.0
#max_events = 10
#max_hours = 60.0
# "10-in-10", "5-in-10", "4-in-5", "15-in-20" (past days), "meter-before" (events of up to 30 min), "plan" (the plan that stood
# when notice came; it is told beside the others anyway) or "firm-service-level" (with firm_service_level_w). Where the data do
# not carry it, the next best is taken, and the report says so.
#baseline = "10-in-10"
# "multiplicative", "additive" or "none": by what the load was before the notice; the window ends so long before it.
#adjustment = "multiplicative"
#adjustment_cap = 0.2
#adjustment_window = "3h"
#adjustment_gap = "1h"
#meter_before = "10m"
#timezone = "Europe/Berlin"
#holidays = [2026-12-25]
#outage_days = []
# What is settled by; which share of intervals must be within the limit; what above it still counts as within.
#measurement_interval = "1m"
#required_share = 1.0
#tolerance_w = 0.0

# Power agents measure and cap GPUs, one on each node. "auto": submitted as a Ray job to each region with GPUs; "off": none, or
# run as a service ('gridshift agent').
#[agents]
#deploy = "auto"
# Seconds without a word after which what a node draws is unknown.
#silent_after = "10s"
# Leave GPUs uncapped on which a process of no job of gridshift's works; limits of events count what they draw as it is.
#protect_foreign = true

# For how many days what was measured is kept: energy by the minute, energy by the hour, and the readings of meters.
#[energy]
#minutes_kept_days = 35
#hours_kept_days = 1095
#readings_kept_days = 1095

# Run against the past instead of now; start must lie within the data of the feeds.
#[replay]
#start = "2023-05-01T00:00Z"
#speed = 720.0
"""

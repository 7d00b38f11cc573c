CREATE TABLE lading_bill (
    level VARCHAR(5) NOT NULL, 
    split VARCHAR(8) NOT NULL, 
    day INTEGER NOT NULL, 
    dag_id VARCHAR(250) NOT NULL, 
    task_id VARCHAR(250) NOT NULL, 
    name VARCHAR(250) NOT NULL, 
    week INTEGER NOT NULL, 
    month INTEGER NOT NULL, 
    jobs INTEGER NOT NULL, 
    failed INTEGER NOT NULL, 
    used DOUBLE NOT NULL, 
    unused DOUBLE NOT NULL, 
    idle DOUBLE NOT NULL, 
    boot DOUBLE NOT NULL, 
    usd_used DOUBLE, 
    usd_unused DOUBLE, 
    usd_idle DOUBLE, 
    usd_boot DOUBLE, 
    at DOUBLE NOT NULL, 
    CONSTRAINT lading_bill_pkey PRIMARY KEY (level, split, day, dag_id, task_id, name)
);
CREATE INDEX lading_bill_month ON lading_bill (month, level);
CREATE INDEX lading_bill_name ON lading_bill (split, dag_id, task_id, name, day);
CREATE INDEX lading_bill_week ON lading_bill (week, level);
CREATE TABLE lading_budget (
    name VARCHAR(250) NOT NULL, 
    who VARCHAR(250) NOT NULL, 
    most DOUBLE NOT NULL, 
    unit VARCHAR(12) NOT NULL, 
    per VARCHAR(12) NOT NULL, 
    spent DOUBLE NOT NULL, 
    per_hour DOUBLE NOT NULL, 
    since DOUBLE NOT NULL, 
    until DOUBLE NOT NULL, 
    at DOUBLE NOT NULL, 
    warned DOUBLE, 
    lifted DOUBLE, 
    lifted_by VARCHAR(250), 
    CONSTRAINT lading_budget_pkey PRIMARY KEY (name)
);
CREATE TABLE lading_capacity (
    id INTEGER NOT NULL, 
    site VARCHAR(64) NOT NULL, 
    name VARCHAR(250) NOT NULL, 
    cpus DOUBLE NOT NULL, 
    memory INTEGER NOT NULL, 
    gpus DOUBLE NOT NULL, 
    usd_per_hour DOUBLE, 
    since DOUBLE NOT NULL, 
    until DOUBLE, 
    CONSTRAINT lading_capacity_pkey PRIMARY KEY (id)
);
CREATE INDEX lading_capacity_until ON lading_capacity (until);
CREATE TABLE lading_data (
    "key" VARCHAR(40) NOT NULL, 
    site VARCHAR(64) NOT NULL, 
    location VARCHAR(250) NOT NULL, 
    uri TEXT NOT NULL, 
    bytes BIGINT NOT NULL, 
    dag_id VARCHAR(250), 
    run_id VARCHAR(250), 
    at DOUBLE NOT NULL, 
    CONSTRAINT lading_data_pkey PRIMARY KEY ("key", site, location)
);
CREATE INDEX lading_data_at ON lading_data (at);
CREATE TABLE lading_gang (
    token VARCHAR(36) NOT NULL, 
    dag_id VARCHAR(250) NOT NULL, 
    run_id VARCHAR(250) NOT NULL, 
    name VARCHAR(250), 
    stage VARCHAR(12) NOT NULL, 
    attempt INTEGER NOT NULL, 
    wake_at DOUBLE, 
    memory TEXT NOT NULL, 
    started_at DOUBLE, 
    changed_at DOUBLE NOT NULL, 
    CONSTRAINT lading_gang_pkey PRIMARY KEY (token)
);
CREATE TABLE lading_hold (
    token VARCHAR(36) NOT NULL, 
    gang VARCHAR(36) NOT NULL, 
    job VARCHAR(36) NOT NULL, 
    partition VARCHAR(250) NOT NULL, 
    site VARCHAR(64) NOT NULL, 
    location VARCHAR(250) NOT NULL, 
    cpus DOUBLE NOT NULL, 
    memory INTEGER NOT NULL, 
    disk INTEGER NOT NULL, 
    gpus DOUBLE NOT NULL, 
    state VARCHAR(12) NOT NULL, 
    reason TEXT, 
    created_at DOUBLE NOT NULL, 
    asked_at DOUBLE NOT NULL, 
    CONSTRAINT lading_hold_pkey PRIMARY KEY (token)
);
CREATE INDEX lading_hold_gang ON lading_hold (gang);
CREATE TABLE lading_instance (
    token VARCHAR(250) NOT NULL, 
    site VARCHAR(64) NOT NULL, 
    kind TEXT NOT NULL, 
    cpus DOUBLE NOT NULL, 
    memory INTEGER NOT NULL, 
    disk INTEGER NOT NULL, 
    gpus DOUBLE NOT NULL, 
    usd_per_hour DOUBLE, 
    surcharges TEXT, 
    zone VARCHAR(40), 
    capacity_type VARCHAR(12), 
    usd DOUBLE, 
    usd_since DOUBLE, 
    usd_idle DOUBLE, 
    seconds DOUBLE NOT NULL, 
    state VARCHAR(12) NOT NULL, 
    native_id VARCHAR(250), 
    node VARCHAR(250), 
    ordered_at DOUBLE NOT NULL, 
    launched_at DOUBLE, 
    ready_at DOUBLE, 
    idle_since DOUBLE, 
    ended_at DOUBLE, 
    cause VARCHAR(20), 
    reason TEXT, 
    changed_at DOUBLE, usd_gone DOUBLE, cpu_seconds_gone DOUBLE, part_shared DOUBLE, 
    CONSTRAINT lading_instance_pkey PRIMARY KEY (token)
);
CREATE INDEX lading_instance_ended ON lading_instance (ended_at);
CREATE INDEX lading_instance_site ON lading_instance (site, state);
CREATE TABLE lading_job (
    token VARCHAR(36) NOT NULL, 
    kind VARCHAR(30) NOT NULL, 
    subject VARCHAR(36) NOT NULL, 
    dag_id VARCHAR(250), 
    task_id VARCHAR(250), 
    run_id VARCHAR(250), 
    map_index INTEGER NOT NULL, 
    try_number INTEGER NOT NULL, 
    owner INTEGER, 
    workload TEXT NOT NULL, 
    cpus DOUBLE NOT NULL, 
    memory INTEGER NOT NULL, 
    disk INTEGER NOT NULL, 
    gpus DOUBLE NOT NULL, 
    memory_limit INTEGER, 
    time_limit INTEGER, 
    site_hint VARCHAR(64), 
    instance_type VARCHAR(64), 
    arch VARCHAR(32), 
    os VARCHAR(32), 
    features TEXT, 
    capacity_type VARCHAR(12), 
    queue_hint VARCHAR(250), 
    native_hint TEXT, 
    targets TEXT, 
    soft TEXT, 
    nodes INTEGER, 
    ppn INTEGER, 
    threads INTEGER, 
    priority INTEGER NOT NULL, 
    max_instances INTEGER, 
    run_max_instances INTEGER, 
    max_jobs INTEGER, 
    run_max_jobs INTEGER, 
    max_usd DOUBLE, 
    sizing TEXT, 
    gang VARCHAR(36), 
    gang_terms TEXT, 
    inputs TEXT, 
    container TEXT, 
    stage TEXT, 
    input_size BIGINT, 
    state VARCHAR(12) NOT NULL, 
    cause VARCHAR(20), 
    reason TEXT, 
    cancel TEXT, 
    unreported BOOLEAN NOT NULL, 
    news INTEGER NOT NULL, 
    site VARCHAR(64), 
    location VARCHAR(250), 
    queue VARCHAR(250), 
    rule VARCHAR(64), 
    asked TEXT, 
    native_id VARCHAR(250), 
    node VARCHAR(250), 
    placed_because TEXT, 
    expires_at DOUBLE, 
    lane DOUBLE, 
    queued_at DOUBLE NOT NULL, 
    placed_at DOUBLE, 
    submitted_at DOUBLE, 
    started_at DOUBLE, 
    ended_at DOUBLE, 
    exit_code INTEGER, 
    peak_memory INTEGER, 
    cpu_seconds DOUBLE, 
    given_back BOOLEAN, 
    usd DOUBLE, 
    changed_at DOUBLE, examined_by VARCHAR(36), strikes INTEGER, input_values TEXT, reason_code VARCHAR(40), reason_limit VARCHAR(250), team VARCHAR(50), dag_owner VARCHAR(250), dag_tags TEXT, executor_team VARCHAR(50), native_start DOUBLE, planned_start DOUBLE, said_at DOUBLE, said_since DOUBLE, said_until DOUBLE, said_source VARCHAR(12), 
    CONSTRAINT lading_job_pkey PRIMARY KEY (token)
);
CREATE INDEX lading_job_cause ON lading_job (cause, ended_at);
CREATE INDEX lading_job_changed ON lading_job (changed_at);
CREATE INDEX lading_job_dag ON lading_job (dag_id, queued_at);
CREATE INDEX lading_job_ended ON lading_job (ended_at);
CREATE INDEX lading_job_gang ON lading_job (gang, state);
CREATE INDEX lading_job_history ON lading_job (dag_id, task_id, ended_at);
CREATE INDEX lading_job_native ON lading_job (native_id);
CREATE INDEX lading_job_node ON lading_job (node);
CREATE INDEX lading_job_place ON lading_job (location);
CREATE INDEX lading_job_queued ON lading_job (queued_at, token);
CREATE INDEX lading_job_started ON lading_job (started_at, site, dag_id);
CREATE INDEX lading_job_task ON lading_job (dag_id, run_id, task_id);
CREATE INDEX lading_job_unreported ON lading_job (owner, unreported);
CREATE INDEX lading_job_waiting ON lading_job (state, priority, queued_at);
CREATE TABLE lading_lease (
    name VARCHAR(30) NOT NULL, 
    holder VARCHAR(36) NOT NULL, 
    host VARCHAR(250) NOT NULL, 
    pid INTEGER NOT NULL, 
    managed BOOLEAN NOT NULL, 
    expires_at DOUBLE NOT NULL, database_ahead DOUBLE, 
    CONSTRAINT lading_lease_pkey PRIMARY KEY (name)
);
CREATE TABLE lading_location (
    site VARCHAR(64) NOT NULL, 
    name VARCHAR(250) NOT NULL, 
    kind VARCHAR(30) NOT NULL, 
    instance_type VARCHAR(64), 
    cpus DOUBLE NOT NULL, 
    memory INTEGER NOT NULL, 
    disk INTEGER NOT NULL, 
    gpus DOUBLE NOT NULL, 
    arch VARCHAR(32), 
    os VARCHAR(32), 
    features TEXT, 
    capacity_type VARCHAR(12), 
    nodes INTEGER, 
    idle_nodes INTEGER, 
    wraps VARCHAR(250), 
    stacked BOOLEAN, 
    usd_per_cpu_hour DOUBLE, 
    state VARCHAR(12), 
    native_id VARCHAR(250), 
    node VARCHAR(250), 
    note TEXT, 
    seen_at DOUBLE NOT NULL, 
    CONSTRAINT lading_location_pkey PRIMARY KEY (site, name)
);
CREATE TABLE lading_request (
    id INTEGER NOT NULL, 
    kind VARCHAR(12) NOT NULL, 
    target VARCHAR(320) NOT NULL, 
    "by" VARCHAR(250) NOT NULL, 
    at DOUBLE NOT NULL, 
    done_at DOUBLE, 
    outcome TEXT, 
    CONSTRAINT lading_request_pkey PRIMARY KEY (id)
);
CREATE INDEX lading_request_done ON lading_request (done_at);
CREATE TABLE lading_run_forecast (
    dag_id VARCHAR(250) NOT NULL, 
    run_id VARCHAR(250) NOT NULL, 
    hurry DOUBLE, 
    finish_by DOUBLE, 
    ends_at DOUBLE, 
    at DOUBLE NOT NULL, 
    CONSTRAINT lading_run_forecast_pkey PRIMARY KEY (dag_id, run_id)
);
CREATE TABLE lading_run_request (
    dag_id VARCHAR(250) NOT NULL, 
    run_id VARCHAR(250) NOT NULL, 
    hurry DOUBLE, 
    finish_by VARCHAR(40), 
    "by" VARCHAR(250) NOT NULL, 
    at DOUBLE NOT NULL, 
    CONSTRAINT lading_run_request_pkey PRIMARY KEY (dag_id, run_id)
);
CREATE TABLE lading_share (
    name VARCHAR(250) NOT NULL, 
    used DOUBLE NOT NULL, 
    weight DOUBLE NOT NULL, 
    at DOUBLE NOT NULL, 
    CONSTRAINT lading_share_pkey PRIMARY KEY (name)
);
CREATE TABLE lading_site (
    name VARCHAR(64) NOT NULL, 
    kind VARCHAR(30) NOT NULL, 
    position INTEGER NOT NULL, 
    limits TEXT NOT NULL, 
    contact_at DOUBLE, 
    trouble TEXT, 
    paused_by VARCHAR(250), 
    barred TEXT, 
    CONSTRAINT lading_site_pkey PRIMARY KEY (name)
);
CREATE TABLE lading_size (
    site VARCHAR(64) NOT NULL, 
    instance_type VARCHAR(64) NOT NULL, 
    image VARCHAR(250) NOT NULL, 
    cpus DOUBLE NOT NULL, 
    memory INTEGER NOT NULL, 
    disk INTEGER NOT NULL, 
    gpus DOUBLE NOT NULL, 
    seen_at DOUBLE NOT NULL, 
    CONSTRAINT lading_size_pkey PRIMARY KEY (site, instance_type, image)
);
CREATE TABLE lading_usage (
    dag_id VARCHAR(250) NOT NULL, 
    task_id VARCHAR(250) NOT NULL, 
    day INTEGER NOT NULL, 
    size_class INTEGER NOT NULL, 
    site VARCHAR(64) NOT NULL, 
    jobs INTEGER NOT NULL, 
    failed INTEGER NOT NULL, 
    cpu_seconds DOUBLE NOT NULL, 
    cpu_seconds_used DOUBLE NOT NULL, 
    usd DOUBLE, 
    team VARCHAR(50), 
    dag_owner VARCHAR(250), 
    usage TEXT NOT NULL, 
    usd_used DOUBLE, 
    usd_idle DOUBLE, 
    usd_boot DOUBLE, 
    cpu_seconds_unused DOUBLE NOT NULL, 
    cpu_seconds_idle DOUBLE NOT NULL, 
    cpu_seconds_boot DOUBLE NOT NULL, 
    CONSTRAINT lading_usage_pkey PRIMARY KEY (dag_id, task_id, day, size_class, site)
);
CREATE INDEX lading_usage_day ON lading_usage (day);

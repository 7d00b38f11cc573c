CREATE TABLE public.lading_bill (
    level character varying(5) NOT NULL,
    split character varying(8) NOT NULL,
    day integer NOT NULL,
    dag_id character varying(250) NOT NULL,
    task_id character varying(250) NOT NULL,
    name character varying(250) NOT NULL,
    week integer NOT NULL,
    month integer NOT NULL,
    jobs integer NOT NULL,
    failed integer NOT NULL,
    used double precision NOT NULL,
    unused double precision NOT NULL,
    idle double precision NOT NULL,
    boot double precision NOT NULL,
    usd_used double precision,
    usd_unused double precision,
    usd_idle double precision,
    usd_boot double precision,
    at double precision NOT NULL
);
CREATE TABLE public.lading_budget (
    name character varying(250) NOT NULL,
    who character varying(250) NOT NULL,
    most double precision NOT NULL,
    unit character varying(12) NOT NULL,
    per character varying(12) NOT NULL,
    spent double precision NOT NULL,
    per_hour double precision NOT NULL,
    since double precision NOT NULL,
    until double precision NOT NULL,
    at double precision NOT NULL,
    warned double precision,
    lifted double precision,
    lifted_by character varying(250)
);
CREATE TABLE public.lading_capacity (
    id integer NOT NULL,
    site character varying(64) NOT NULL,
    name character varying(250) NOT NULL,
    cpus double precision NOT NULL,
    memory integer NOT NULL,
    gpus double precision NOT NULL,
    usd_per_hour double precision,
    since double precision NOT NULL,
    until double precision
);
CREATE SEQUENCE public.lading_capacity_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.lading_capacity_id_seq OWNED BY public.lading_capacity.id;
CREATE TABLE public.lading_data (
    key character varying(40) NOT NULL,
    site character varying(64) NOT NULL,
    location character varying(250) NOT NULL,
    uri text NOT NULL,
    bytes bigint NOT NULL,
    dag_id character varying(250),
    run_id character varying(250),
    at double precision NOT NULL
);
CREATE TABLE public.lading_gang (
    token character varying(36) NOT NULL,
    dag_id character varying(250) NOT NULL,
    run_id character varying(250) NOT NULL,
    name character varying(250),
    stage character varying(12) NOT NULL,
    attempt integer NOT NULL,
    wake_at double precision,
    memory text NOT NULL,
    started_at double precision,
    changed_at double precision NOT NULL
);
CREATE TABLE public.lading_hold (
    token character varying(36) NOT NULL,
    gang character varying(36) NOT NULL,
    job character varying(36) NOT NULL,
    partition character varying(250) NOT NULL,
    site character varying(64) NOT NULL,
    location character varying(250) NOT NULL,
    cpus double precision NOT NULL,
    memory integer NOT NULL,
    disk integer NOT NULL,
    gpus double precision NOT NULL,
    state character varying(12) NOT NULL,
    reason text,
    created_at double precision NOT NULL,
    asked_at double precision NOT NULL
);
CREATE TABLE public.lading_instance (
    token character varying(250) NOT NULL,
    site character varying(64) NOT NULL,
    kind text NOT NULL,
    cpus double precision NOT NULL,
    memory integer NOT NULL,
    disk integer NOT NULL,
    gpus double precision NOT NULL,
    usd_per_hour double precision,
    surcharges text,
    zone character varying(40),
    capacity_type character varying(12),
    usd double precision,
    usd_since double precision,
    usd_idle double precision,
    seconds double precision NOT NULL,
    state character varying(12) NOT NULL,
    native_id character varying(250),
    node character varying(250),
    ordered_at double precision NOT NULL,
    launched_at double precision,
    ready_at double precision,
    idle_since double precision,
    ended_at double precision,
    cause character varying(20),
    reason text,
    changed_at double precision,
    usd_gone double precision,
    cpu_seconds_gone double precision,
    part_shared double precision
);
CREATE TABLE public.lading_job (
    token character varying(36) NOT NULL,
    kind character varying(30) NOT NULL,
    subject character varying(36) NOT NULL,
    dag_id character varying(250),
    task_id character varying(250),
    run_id character varying(250),
    map_index integer NOT NULL,
    try_number integer NOT NULL,
    owner integer,
    workload text NOT NULL,
    cpus double precision NOT NULL,
    memory integer NOT NULL,
    disk integer NOT NULL,
    gpus double precision NOT NULL,
    memory_limit integer,
    time_limit integer,
    site_hint character varying(64),
    instance_type character varying(64),
    arch character varying(32),
    os character varying(32),
    features text,
    capacity_type character varying(12),
    queue_hint character varying(250),
    native_hint text,
    targets text,
    soft text,
    nodes integer,
    ppn integer,
    threads integer,
    priority integer NOT NULL,
    max_instances integer,
    run_max_instances integer,
    max_jobs integer,
    run_max_jobs integer,
    max_usd double precision,
    sizing text,
    gang character varying(36),
    gang_terms text,
    inputs text,
    container text,
    stage text,
    input_size bigint,
    state character varying(12) NOT NULL,
    cause character varying(20),
    reason text,
    cancel text,
    unreported boolean NOT NULL,
    news integer NOT NULL,
    site character varying(64),
    location character varying(250),
    queue character varying(250),
    rule character varying(64),
    asked text,
    native_id character varying(250),
    node character varying(250),
    placed_because text,
    expires_at double precision,
    lane double precision,
    queued_at double precision NOT NULL,
    placed_at double precision,
    submitted_at double precision,
    started_at double precision,
    ended_at double precision,
    exit_code integer,
    peak_memory integer,
    cpu_seconds double precision,
    given_back boolean,
    usd double precision,
    changed_at double precision,
    examined_by character varying(36),
    strikes integer,
    input_values text,
    reason_code character varying(40),
    reason_limit character varying(250),
    team character varying(50),
    dag_owner character varying(250),
    dag_tags text,
    executor_team character varying(50),
    native_start double precision,
    planned_start double precision,
    said_at double precision,
    said_since double precision,
    said_until double precision,
    said_source character varying(12)
);
CREATE TABLE public.lading_lease (
    name character varying(30) NOT NULL,
    holder character varying(36) NOT NULL,
    host character varying(250) NOT NULL,
    pid integer NOT NULL,
    managed boolean NOT NULL,
    expires_at double precision NOT NULL,
    database_ahead double precision
);
CREATE TABLE public.lading_location (
    site character varying(64) NOT NULL,
    name character varying(250) NOT NULL,
    kind character varying(30) NOT NULL,
    instance_type character varying(64),
    cpus double precision NOT NULL,
    memory integer NOT NULL,
    disk integer NOT NULL,
    gpus double precision NOT NULL,
    arch character varying(32),
    os character varying(32),
    features text,
    capacity_type character varying(12),
    nodes integer,
    idle_nodes integer,
    wraps character varying(250),
    stacked boolean,
    usd_per_cpu_hour double precision,
    state character varying(12),
    native_id character varying(250),
    node character varying(250),
    note text,
    seen_at double precision NOT NULL
);
CREATE TABLE public.lading_request (
    id integer NOT NULL,
    kind character varying(12) NOT NULL,
    target character varying(320) NOT NULL,
    by character varying(250) NOT NULL,
    at double precision NOT NULL,
    done_at double precision,
    outcome text
);
CREATE SEQUENCE public.lading_request_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.lading_request_id_seq OWNED BY public.lading_request.id;
CREATE TABLE public.lading_run_forecast (
    dag_id character varying(250) NOT NULL,
    run_id character varying(250) NOT NULL,
    hurry double precision,
    finish_by double precision,
    ends_at double precision,
    at double precision NOT NULL
);
CREATE TABLE public.lading_run_request (
    dag_id character varying(250) NOT NULL,
    run_id character varying(250) NOT NULL,
    hurry double precision,
    finish_by character varying(40),
    by character varying(250) NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.lading_share (
    name character varying(250) NOT NULL,
    used double precision NOT NULL,
    weight double precision NOT NULL,
    at double precision NOT NULL
);
CREATE TABLE public.lading_site (
    name character varying(64) NOT NULL,
    kind character varying(30) NOT NULL,
    "position" integer NOT NULL,
    limits text NOT NULL,
    contact_at double precision,
    trouble text,
    paused_by character varying(250),
    barred text
);
CREATE TABLE public.lading_size (
    site character varying(64) NOT NULL,
    instance_type character varying(64) NOT NULL,
    image character varying(250) NOT NULL,
    cpus double precision NOT NULL,
    memory integer NOT NULL,
    disk integer NOT NULL,
    gpus double precision NOT NULL,
    seen_at double precision NOT NULL
);
CREATE TABLE public.lading_usage (
    dag_id character varying(250) NOT NULL,
    task_id character varying(250) NOT NULL,
    day integer NOT NULL,
    size_class integer NOT NULL,
    site character varying(64) NOT NULL,
    jobs integer NOT NULL,
    failed integer NOT NULL,
    cpu_seconds double precision NOT NULL,
    cpu_seconds_used double precision NOT NULL,
    usd double precision,
    team character varying(50),
    dag_owner character varying(250),
    usage text NOT NULL,
    usd_used double precision,
    usd_idle double precision,
    usd_boot double precision,
    cpu_seconds_unused double precision NOT NULL,
    cpu_seconds_idle double precision NOT NULL,
    cpu_seconds_boot double precision NOT NULL
);
ALTER TABLE ONLY public.lading_capacity ALTER COLUMN id SET DEFAULT nextval('public.lading_capacity_id_seq'::regclass);
ALTER TABLE ONLY public.lading_request ALTER COLUMN id SET DEFAULT nextval('public.lading_request_id_seq'::regclass);
ALTER TABLE ONLY public.lading_bill
    ADD CONSTRAINT lading_bill_pkey PRIMARY KEY (level, split, day, dag_id, task_id, name);
ALTER TABLE ONLY public.lading_budget
    ADD CONSTRAINT lading_budget_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.lading_capacity
    ADD CONSTRAINT lading_capacity_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.lading_data
    ADD CONSTRAINT lading_data_pkey PRIMARY KEY (key, site, location);
ALTER TABLE ONLY public.lading_gang
    ADD CONSTRAINT lading_gang_pkey PRIMARY KEY (token);
ALTER TABLE ONLY public.lading_hold
    ADD CONSTRAINT lading_hold_pkey PRIMARY KEY (token);
ALTER TABLE ONLY public.lading_instance
    ADD CONSTRAINT lading_instance_pkey PRIMARY KEY (token);
ALTER TABLE ONLY public.lading_job
    ADD CONSTRAINT lading_job_pkey PRIMARY KEY (token);
ALTER TABLE ONLY public.lading_lease
    ADD CONSTRAINT lading_lease_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.lading_location
    ADD CONSTRAINT lading_location_pkey PRIMARY KEY (site, name);
ALTER TABLE ONLY public.lading_request
    ADD CONSTRAINT lading_request_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.lading_run_forecast
    ADD CONSTRAINT lading_run_forecast_pkey PRIMARY KEY (dag_id, run_id);
ALTER TABLE ONLY public.lading_run_request
    ADD CONSTRAINT lading_run_request_pkey PRIMARY KEY (dag_id, run_id);
ALTER TABLE ONLY public.lading_share
    ADD CONSTRAINT lading_share_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.lading_site
    ADD CONSTRAINT lading_site_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.lading_size
    ADD CONSTRAINT lading_size_pkey PRIMARY KEY (site, instance_type, image);
ALTER TABLE ONLY public.lading_usage
    ADD CONSTRAINT lading_usage_pkey PRIMARY KEY (dag_id, task_id, day, size_class, site);
CREATE INDEX lading_bill_month ON public.lading_bill USING btree (month, level);
CREATE INDEX lading_bill_name ON public.lading_bill USING btree (split, dag_id, task_id, name, day);
CREATE INDEX lading_bill_week ON public.lading_bill USING btree (week, level);
CREATE INDEX lading_capacity_until ON public.lading_capacity USING btree (until);
CREATE INDEX lading_data_at ON public.lading_data USING btree (at);
CREATE INDEX lading_hold_gang ON public.lading_hold USING btree (gang);
CREATE INDEX lading_instance_ended ON public.lading_instance USING btree (ended_at);
CREATE INDEX lading_instance_site ON public.lading_instance USING btree (site, state);
CREATE INDEX lading_job_cause ON public.lading_job USING btree (cause, ended_at);
CREATE INDEX lading_job_changed ON public.lading_job USING btree (changed_at);
CREATE INDEX lading_job_dag ON public.lading_job USING btree (dag_id, queued_at);
CREATE INDEX lading_job_ended ON public.lading_job USING btree (ended_at);
CREATE INDEX lading_job_gang ON public.lading_job USING btree (gang, state);
CREATE INDEX lading_job_history ON public.lading_job USING btree (dag_id, task_id, ended_at);
CREATE INDEX lading_job_native ON public.lading_job USING btree (native_id varchar_pattern_ops);
CREATE INDEX lading_job_node ON public.lading_job USING btree (node varchar_pattern_ops);
CREATE INDEX lading_job_place ON public.lading_job USING btree (location varchar_pattern_ops);
CREATE INDEX lading_job_queued ON public.lading_job USING btree (queued_at, token);
CREATE INDEX lading_job_started ON public.lading_job USING btree (started_at, site, dag_id);
CREATE INDEX lading_job_task ON public.lading_job USING btree (dag_id, run_id, task_id);
CREATE INDEX lading_job_unreported ON public.lading_job USING btree (owner, unreported);
CREATE INDEX lading_job_waiting ON public.lading_job USING btree (state, priority, queued_at);
CREATE INDEX lading_request_done ON public.lading_request USING btree (done_at);
CREATE INDEX lading_usage_day ON public.lading_usage USING btree (day);

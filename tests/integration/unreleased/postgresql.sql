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
    usd_per_hour double precision,
    changed_at double precision,
    zone character varying(40),
    capacity_type character varying(12),
    usd double precision,
    usd_since double precision,
    usd_idle double precision,
    surcharges text
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
    priority integer NOT NULL,
    max_instances integer,
    run_max_instances integer,
    appraisal text,
    state character varying(12) NOT NULL,
    cause character varying(20),
    reason text,
    cancel text,
    unreported boolean NOT NULL,
    news integer NOT NULL,
    site character varying(64),
    location character varying(250),
    expires_at double precision,
    queued_at double precision NOT NULL,
    placed_at double precision,
    started_at double precision,
    ended_at double precision,
    exit_code integer,
    peak_memory integer,
    cpu_seconds double precision,
    queue_hint character varying(250),
    native_hint text,
    given_back boolean,
    native_id character varying(250),
    node character varying(250),
    nodes integer,
    ppn integer,
    threads integer,
    arch character varying(32),
    os character varying(32),
    features text,
    capacity_type character varying(12),
    max_jobs integer,
    run_max_jobs integer,
    lane double precision,
    submitted_at double precision,
    usd double precision,
    changed_at double precision,
    input_size bigint,
    placed_because text,
    targets text,
    queue character varying(250),
    soft text,
    rule character varying(64),
    asked text,
    gang character varying(36),
    gang_terms text,
    inputs text,
    container text,
    max_usd double precision,
    ahead boolean,
    stage text
);
CREATE TABLE public.lading_lease (
    name character varying(30) NOT NULL,
    holder character varying(36) NOT NULL,
    host character varying(250) NOT NULL,
    pid integer NOT NULL,
    managed boolean NOT NULL,
    expires_at double precision NOT NULL
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
    note text,
    seen_at double precision NOT NULL,
    state character varying(12),
    native_id character varying(250),
    node character varying(250),
    arch character varying(32),
    os character varying(32),
    features text,
    capacity_type character varying(12),
    usd_per_cpu_hour double precision,
    nodes integer,
    idle_nodes integer,
    wraps character varying(250),
    stacked boolean
);
CREATE TABLE public.lading_request (
    id integer NOT NULL,
    kind character varying(12) NOT NULL,
    target character varying(320) NOT NULL,
    by character varying(250) NOT NULL,
    at double precision NOT NULL,
    done_at double precision,
    words text
);
CREATE SEQUENCE public.lading_request_id_seq
    AS integer
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.lading_request_id_seq OWNED BY public.lading_request.id;
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
    jobs integer NOT NULL,
    failed integer NOT NULL,
    cpu_seconds double precision NOT NULL,
    cpu_seconds_used double precision NOT NULL,
    usd double precision,
    usage text NOT NULL
);
ALTER TABLE ONLY public.lading_capacity ALTER COLUMN id SET DEFAULT nextval('public.lading_capacity_id_seq'::regclass);
ALTER TABLE ONLY public.lading_request ALTER COLUMN id SET DEFAULT nextval('public.lading_request_id_seq'::regclass);
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
ALTER TABLE ONLY public.lading_site
    ADD CONSTRAINT lading_site_pkey PRIMARY KEY (name);
ALTER TABLE ONLY public.lading_size
    ADD CONSTRAINT lading_size_pkey PRIMARY KEY (site, instance_type, image);
ALTER TABLE ONLY public.lading_usage
    ADD CONSTRAINT lading_usage_pkey PRIMARY KEY (dag_id, task_id, day, size_class);
CREATE INDEX lading_capacity_until ON public.lading_capacity USING btree (until);
CREATE INDEX lading_data_at ON public.lading_data USING btree (at);
CREATE INDEX lading_hold_gang ON public.lading_hold USING btree (gang);
CREATE INDEX lading_instance_ended ON public.lading_instance USING btree (ended_at);
CREATE INDEX lading_instance_site ON public.lading_instance USING btree (site, state);
CREATE INDEX lading_job_ahead ON public.lading_job USING btree (ahead, state);
CREATE INDEX lading_job_changed ON public.lading_job USING btree (changed_at);
CREATE INDEX lading_job_ended ON public.lading_job USING btree (ended_at);
CREATE INDEX lading_job_gang ON public.lading_job USING btree (gang, state);
CREATE INDEX lading_job_history ON public.lading_job USING btree (dag_id, task_id, ended_at);
CREATE INDEX lading_job_started ON public.lading_job USING btree (started_at);
CREATE INDEX lading_job_task ON public.lading_job USING btree (dag_id, run_id, task_id);
CREATE INDEX lading_job_unreported ON public.lading_job USING btree (owner, unreported);
CREATE INDEX lading_job_waiting ON public.lading_job USING btree (state, priority, queued_at);
CREATE INDEX lading_request_done ON public.lading_request USING btree (done_at);
CREATE INDEX lading_usage_day ON public.lading_usage USING btree (day);

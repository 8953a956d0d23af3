"""The schema of history in PostgreSQL, as migrations.

Numbers in the views are those of si.v1.EventRecord (docs/events.md): types APP 2, NODE 3, QUEUE 4, USERGROUP 5; changes
SET 1, ADD 2, REMOVE 3; details APP_ALLOC 200, APP_REQUEST 201, states 202–212, NODE_ALLOC 303, QUEUE_APP 405,
ALLOC_* 500–504, UG_APP_LINK 602. They are compared instead of the names because numbers are cheaper.

How allocations are found: one begins with APP ADD APP_ALLOC and ends with APP REMOVE ALLOC_*. One key can have several
at a time; the k-th end belongs to the k-th begin. Ends whose begin is no longer there (retention) come first.
"""

from __future__ import annotations

_EVENTS = """
    create table {schema}.events (
        instance text not null,
        id bigint not null,
        rm text not null,
        timestamp_ns bigint not null,
        type text not null,
        type_number integer not null,
        change_type text not null,
        change_type_number integer not null,
        change_detail text not null,
        change_detail_number integer not null,
        object_id text not null,
        reference_id text not null,
        message text not null,
        resource jsonb not null,
        primary key (instance, rm, id, timestamp_ns)
    ) partition by range (timestamp_ns);
    create index events_object on {schema}.events (object_id, timestamp_ns);
    create index events_reference on {schema}.events (reference_id, timestamp_ns);
    create table {schema}.export_progress (
        source text not null,
        partition integer not null,
        end_position bigint not null,
        last_offset bigint not null,
        last_rm text not null,
        last_instance text not null,
        last_id bigint not null,
        updated_at timestamptz not null default now(),
        primary key (source, partition)
    );
    """

_VIEWS = """
    -- The serialised event, where the columns do not say all of it (text that PostgreSQL cannot store).
    alter table {schema}.events add column record bytea;

    -- Which queue an application joined, and when it began: few among many events.
    create index events_joined on {schema}.events (reference_id, id)
        where type_number = 4 and change_type_number = 2 and change_detail_number = 405;
    create index events_submitted on {schema}.events (object_id, id)
        where type_number = 2 and change_type_number = 2 and change_detail_number in (0, 203);
    create index events_nodes on {schema}.events (object_id, id) where type_number = 3;

    create function {schema}.time_of(ns bigint) returns timestamptz stable parallel safe language sql
        return timestamptz 'epoch' + (ns / 1000) * interval '1 microsecond';

    create view {schema}.pairs as
        with about as (
            select rm, instance, object_id as application, reference_id as allocation_key, id, timestamp_ns,
                change_detail_number, message, resource, case change_type_number when 2 then 1 else -1 end as step
            from {schema}.events
            where type_number = 2 and (
                (change_type_number = 2 and change_detail_number = 200)
                or (change_type_number = 3 and change_detail_number between 500 and 504))
        ), counted as (
            select *, sum(step) over (alike order by id rows unbounded preceding) as balance,
                row_number() over (partition by rm, instance, application, allocation_key, step order by id) as number
            from about
            window alike as (partition by rm, instance, application, allocation_key)
        ), numbered as (
            select *, number + case step when 1 then greatest(0, -min(balance) over (
                partition by rm, instance, application, allocation_key)) else 0 end as pair
            from counted
        )
        select rm, instance, application, allocation_key, pair,
            min(id) filter (where step = 1) as begin_id, min(id) filter (where step = -1) as end_id,
            min(timestamp_ns) filter (where step = 1) as begin_ns,
            min(timestamp_ns) filter (where step = -1) as end_ns,
            min(change_detail_number) filter (where step = -1) as end_detail,
            (array_agg(resource order by step desc))[1] as resource,
            coalesce(max(nullif(message, '')) filter (where step = -1), max(message) filter (where step = 1), '')
                as message
        from numbered
        group by rm, instance, application, allocation_key, pair;

    create view {schema}.allocations as
        select p.rm, p.instance, p.application, p.allocation_key,
            (select n.object_id from {schema}.events n
                where n.reference_id = p.allocation_key and n.timestamp_ns = coalesce(p.begin_ns, p.end_ns)
                    and n.rm = p.rm and n.instance = p.instance and n.id > coalesce(p.begin_id, p.end_id)
                    and n.type_number = 3 and n.change_detail_number = 303
                order by n.id limit 1) as node,
            (select q.object_id from {schema}.events q
                where q.reference_id = p.application and q.id < coalesce(p.begin_id, p.end_id)
                    and q.rm = p.rm and q.instance = p.instance
                    and q.type_number = 4 and q.change_type_number = 2 and q.change_detail_number = 405
                order by q.id desc limit 1) as queue,
            {schema}.time_of(p.begin_ns) as begin_time, {schema}.time_of(p.end_ns) as end_time,
            (p.end_ns - p.begin_ns) / 1e9 as seconds,
            case p.end_detail when 500 then 'released' when 501 then 'preempted' when 502 then 'timed out'
                when 503 then 'replaced' when 504 then 'node removed' end as ended,
            p.resource, p.message, p.begin_ns, p.end_ns, p.begin_id, p.end_id
        from {schema}.pairs p;

    create view {schema}.applications as
        with lives as (
            select rm, instance, object_id as application, id as first_id,
                lead(id) over (partition by rm, instance, object_id order by id) as next_id,
                row_number() over (partition by rm, instance, object_id order by id) as life
            from (
                -- APP ADD without a detail and APP_NEW are one submission when nothing is between them.
                select rm, instance, object_id, id, change_detail_number,
                    lag(id) over (partition by rm, instance, object_id order by id) as before_id
                from {schema}.events
                where type_number = 2 and change_type_number = 2 and change_detail_number in (0, 203)
            ) s
            where before_id is null or id > before_id + 1
        ), told as (
            select e.rm, e.instance, e.object_id as application, e.id, e.timestamp_ns, e.change_type_number,
                e.change_detail_number, e.change_detail, e.message, coalesce(l.life, 0) as life, l.first_id, l.next_id
            from {schema}.events e
            left join lives l on l.rm = e.rm and l.instance = e.instance and l.application = e.object_id
                and e.id >= l.first_id and (l.next_id is null or e.id < l.next_id)
            where e.type_number = 2
        ), summed as (
            select rm, instance, application, life, min(id) as first_id, max(id) as last_id, min(next_id) as next_id,
                min(timestamp_ns) filter (where life > 0) as submitted_ns,
                min(timestamp_ns) filter (where change_detail_number = 204) as accepted_ns,
                min(timestamp_ns) filter (where change_detail_number = 206) as started_ns,
                min(timestamp_ns) filter (where change_detail_number in (202, 208, 210, 212)) as finished_ns,
                (array_agg(change_detail order by id desc)
                    filter (where change_detail_number between 202 and 212))[1] as state,
                (array_agg(message order by id desc)
                    filter (where change_detail_number between 202 and 212 and message <> ''))[1] as message,
                count(*) filter (where change_type_number = 2 and change_detail_number = 201) as asks,
                count(*) filter (where change_type_number = 2 and change_detail_number = 200) as allocations,
                count(*) filter (where change_type_number = 3 and change_detail_number between 500 and 504) as ended,
                count(*) filter (where change_detail_number = 501) as preempted
            from told
            group by rm, instance, application, life
        )
        select s.rm, s.instance, s.application, s.life,
            (select q.object_id from {schema}.events q
                where q.reference_id = s.application and q.rm = s.rm and q.instance = s.instance
                    and (s.next_id is null or q.id < s.next_id)
                    and q.type_number = 4 and q.change_type_number = 2 and q.change_detail_number = 405
                order by q.id desc limit 1) as queue,
            (select u.object_id from {schema}.events u
                where u.reference_id = s.application and u.rm = s.rm and u.instance = s.instance
                    and (s.next_id is null or u.id < s.next_id)
                    and u.type_number = 5 and u.change_detail_number = 602
                order by u.id desc limit 1) as user_group,
            case s.state when 'APP_REJECT' then 'Rejected' else initcap(substr(s.state, 5)) end as state,
            {schema}.time_of(s.submitted_ns) as submitted_time, {schema}.time_of(s.accepted_ns) as accepted_time,
            {schema}.time_of(s.started_ns) as started_time, {schema}.time_of(s.finished_ns) as finished_time,
            s.asks, s.allocations, greatest(s.allocations - s.ended, 0) as running, s.preempted,
            (select jsonb_object_agg(t.resource_type, t.used order by t.resource_type) from (
                select r.key as resource_type, sum(r.value::numeric * (p.end_ns - p.begin_ns) / 1000000000) as used
                from {schema}.pairs p, jsonb_each_text(p.resource) r
                where p.rm = s.rm and p.instance = s.instance and p.application = s.application
                    and p.begin_id >= s.first_id and (s.next_id is null or p.begin_id < s.next_id)
                    and p.end_ns is not null
                group by r.key) t) as resource_seconds,
            coalesce(s.message, '') as message, s.first_id, s.last_id
        from summed s;

    create view {schema}.queue_usage as
        with joined as (
            select rm, instance, reference_id as application, object_id as queue, id as from_id,
                lead(id) over (partition by rm, instance, reference_id order by id) as until_id
            from {schema}.events
            where type_number = 4 and change_type_number = 2 and change_detail_number = 405
        ), steps as (
            select rm, instance, application, begin_id, begin_id as id, begin_ns as timestamp_ns, resource, 1 as step
            from {schema}.pairs where begin_id is not null
            union all
            select rm, instance, application, begin_id, end_id, end_ns, resource, -1
            from {schema}.pairs where begin_id is not null and end_id is not null
        ), below as (
            select s.rm, s.instance, s.id, s.timestamp_ns, s.step, s.resource,
                string_to_array(j.queue, '.') as parts
            from steps s
            join joined j on j.rm = s.rm and j.instance = s.instance and j.application = s.application
                and s.begin_id > j.from_id and (j.until_id is null or s.begin_id < j.until_id)
        )
        select b.rm, b.instance, array_to_string(b.parts[:depth], '.') as queue, r.key as resource_type,
            {schema}.time_of(b.timestamp_ns) as time, b.step * r.value::numeric as delta,
            sum(b.step * r.value::numeric) over (
                partition by b.rm, b.instance, array_to_string(b.parts[:depth], '.'), r.key
                order by b.id rows unbounded preceding) as used,
            b.id
        from below b, generate_series(1, cardinality(b.parts)) depth, jsonb_each_text(b.resource) r;

    create view {schema}.node_timeline as
        select rm, instance, object_id as node, {schema}.time_of(timestamp_ns) as time,
            case
                when change_detail_number = 303 then
                    case change_type_number when 2 then 'allocation begins' else 'allocation ends' end
                when change_detail_number = 306 then
                    case change_type_number when 2 then 'reserved' else 'reservation ends' end
                when change_type_number = 2 and change_detail_number = 0 then 'added'
                when change_detail_number = 300 then 'removed'
                when change_detail_number = 301 then 'readiness'
                when change_detail_number = 302 then 'schedulability'
                when change_detail_number = 304 then 'capacity'
                when change_detail_number = 305 then 'occupied'
                else lower(change_type || ' ' || change_detail) end as what,
            reference_id as key, resource,
            sum(case when change_detail_number <> 303 then 0 when change_type_number = 2 then 1 else -1 end) over (
                partition by rm, instance, object_id order by id rows unbounded preceding) as allocations,
            message, timestamp_ns, id
        from {schema}.events
        where type_number = 3;
    """

# Each entry is one version, applied in one transaction; {schema} is a checked plain name. Never changed, only added to.
MIGRATIONS: tuple[str, ...] = (_EVENTS, _VIEWS)

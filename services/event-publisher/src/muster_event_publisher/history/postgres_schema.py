"""The schema of history in PostgreSQL, as migrations.

Numbers in the views are those of si.v1.EventRecord (docs/events.md): types APP 2, NODE 3, QUEUE 4, USERGROUP 5; changes
SET 1, ADD 2, REMOVE 3; details APP_ALLOC 200, APP_REQUEST 201, APP_REJECT 202, states 203–212, NODE_ALLOC 303,
QUEUE_APP 405, ALLOC_* 500–504, UG_APP_LINK 602, UG_USER_RESOURCE 603, UG_GROUP_RESOURCE 604. They are compared
instead of the names because numbers are cheaper.

An allocation begins with APP ADD APP_ALLOC and ends with APP REMOVE ALLOC_*. One key can have several at a time; the
k-th end belongs to the k-th begin. Ends whose begin retention has removed come first.
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
    create index events_left on {schema}.events (object_id, id)
        where type_number = 2 and change_type_number = 3 and change_detail_number = 0;
    create index events_nodes on {schema}.events (object_id, id) where type_number = 3;

    create function {schema}.time_of(ns bigint) returns timestamptz stable parallel safe language sql
        return timestamptz 'epoch' + (ns / 1000) * interval '1 microsecond';

    create view {schema}.pairs as
        with about as (
            select rm, instance, object_id as application, reference_id as allocation_key, id, timestamp_ns,
                change_detail_number, message, resource, case change_type_number when 2 then 1 else -1 end as step,
                null::text as joined
            from {schema}.events
            where type_number = 2 and (
                (change_type_number = 2 and change_detail_number = 200)
                or (change_type_number = 3 and change_detail_number between 500 and 504))
            union all
            -- The application went: then what has no end of its own has ended too.
            select rm, instance, object_id, '', id, timestamp_ns, 0, '', null, 0, null
            from {schema}.events
            where type_number = 2 and change_type_number = 3 and change_detail_number = 0
            union all
            -- It came into a queue; in front the id, as text that sorts like a number.
            select rm, instance, reference_id, '', id, timestamp_ns, 0, '', null, 0,
                lpad(id::text, 19, '0') collate "C" || object_id
            from {schema}.events
            where type_number = 4 and change_type_number = 2 and change_detail_number = 405
        ), placed as (
            select *,
                substr(max(joined) over (
                    partition by rm, instance, application order by id rows unbounded preceding), 20) as queue,
                min(id) filter (where step = 0 and joined is null) over (
                    partition by rm, instance, application order by id desc rows unbounded preceding) as left_id,
                min(timestamp_ns) filter (where step = 0 and joined is null) over (
                    partition by rm, instance, application order by id desc rows unbounded preceding) as left_ns
            from about
        ), counted as (
            select *,
                -- The RM changed its size or node: it begins again at once.
                change_detail_number = 503 and message not like 'replaced by %'
                    and lead(step) over each_key = 1 and lead(timestamp_ns) over each_key = timestamp_ns as changed,
                sum(step) over (each_key rows unbounded preceding) as balance,
                row_number() over (partition by rm, instance, application, allocation_key, step order by id) as number
            from placed
            where step <> 0
            window each_key as (partition by rm, instance, application, allocation_key order by id)
        ), numbered as (
            select *, number + case step when 1 then greatest(0, -min(balance) over (
                partition by rm, instance, application, allocation_key)) else 0 end as pair
            from counted
        )
        select rm, instance, application, allocation_key, pair,
            min(id) filter (where step = 1) as begin_id,
            coalesce(min(id) filter (where step = -1), min(left_id)) as end_id,
            min(timestamp_ns) filter (where step = 1) as begin_ns,
            coalesce(min(timestamp_ns) filter (where step = -1), min(left_ns)) as end_ns,
            coalesce(min(change_detail_number) filter (where step = -1), min(0) filter (where left_id is not null))
                as end_detail,
            coalesce(bool_or(changed) filter (where step = -1), false) as changed,
            (array_agg(resource order by step desc))[1] as resource,
            (array_agg(queue order by step desc))[1] as queue,
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
            p.queue, {schema}.time_of(p.begin_ns) as begin_time, {schema}.time_of(p.end_ns) as end_time,
            (p.end_ns - p.begin_ns) / 1e9 as seconds,
            case when p.changed then 'changed' else case p.end_detail
                when 500 then 'released' when 501 then 'preempted' when 502 then 'timed out'
                when 503 then 'replaced' when 504 then 'node removed' when 0 then 'dropped' end end as ended,
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
                -- (Without 212: that it expired says only that it is forgotten, three days after its end.)
                min(timestamp_ns) filter (where change_detail_number in (202, 208, 210)) as ended_ns,
                max(timestamp_ns) filter (where change_type_number = 3 and change_detail_number = 0) as left_ns,
                (array_agg(change_detail order by id desc)
                    filter (where change_detail_number between 202 and 211))[1] as state,
                (array_agg(message order by id desc) filter (where message <> '' and (
                    change_detail_number between 202 and 211
                    or (change_type_number = 3 and change_detail_number = 0))))[1] as message,
                min(id) filter (where change_type_number = 2 and change_detail_number = 200) as allocated_id,
                min(timestamp_ns) filter (where change_type_number = 2 and change_detail_number = 200) as allocated_ns,
                count(*) filter (where change_type_number = 2 and change_detail_number = 201) as asks,
                count(*) filter (where change_type_number = 2 and change_detail_number = 200) as allocations,
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
                    and u.type_number = 5 and u.change_type_number <> 3 and u.change_detail_number = 602
                order by u.id desc limit 1) as user_group,
            -- With each allocation, behind its two events, that of what its user uses.
            (select u.object_id from {schema}.events u
                where u.rm = s.rm and u.instance = s.instance and u.id between s.allocated_id + 1 and s.allocated_id + 3
                    and u.timestamp_ns = s.allocated_ns
                    and u.type_number = 5 and u.change_type_number = 2 and u.change_detail_number = 603
                order by u.id limit 1) as user_name,
            case when s.ended_ns is null and s.left_ns is not null then 'Removed'
                when s.state = 'APP_REJECT' then 'Rejected' else initcap(substr(s.state, 5)) end as state,
            {schema}.time_of(s.submitted_ns) as submitted_time, {schema}.time_of(s.accepted_ns) as accepted_time,
            {schema}.time_of(s.started_ns) as started_time,
            {schema}.time_of(coalesce(s.ended_ns, s.left_ns)) as finished_time,
            s.asks, s.allocations - c.changed as allocations, c.running,
            s.preempted,
            (select jsonb_object_agg(t.resource_type, t.used order by t.resource_type) from (
                select r.key as resource_type, sum(r.value::numeric * (p.end_ns - p.begin_ns) / 1000000000) as used
                from {schema}.pairs p, jsonb_each_text(p.resource) r
                where p.rm = s.rm and p.instance = s.instance and p.application = s.application
                    and p.begin_id >= s.first_id and (s.next_id is null or p.begin_id < s.next_id)
                    and p.end_ns is not null
                group by r.key) t) as resource_seconds,
            coalesce(s.message, '') as message, s.first_id, s.last_id
        from summed s
        cross join lateral (
            select count(*) filter (where p.end_ns is null) as running, count(*) filter (where p.changed) as changed
            from {schema}.pairs p
            where p.rm = s.rm and p.instance = s.instance and p.application = s.application
                and p.begin_id >= s.first_id and (s.next_id is null or p.begin_id < s.next_id)) c;

    create view {schema}.queue_usage as
        with steps as (
            select rm, instance, queue, begin_id as id, begin_ns as timestamp_ns, resource, 1 as step
            from {schema}.pairs where begin_id is not null
            union all
            select rm, instance, queue, end_id, end_ns, resource, -1
            from {schema}.pairs where begin_id is not null and end_id is not null
        ), below as (
            select rm, instance, id, timestamp_ns, step, resource, string_to_array(queue, '.') as parts from steps
        )
        select b.rm, b.instance, array_to_string(b.parts[:depth], '.') as queue, r.key as resource_type,
            {schema}.time_of(b.timestamp_ns) as time, b.step * r.value::numeric as delta,
            sum(b.step * r.value::numeric) over (
                partition by b.rm, b.instance, array_to_string(b.parts[:depth], '.'), r.key
                order by b.id rows unbounded preceding) as used,
            b.id
        from below b, generate_series(1, cardinality(b.parts)) depth, jsonb_each_text(b.resource) r;

    create view {schema}.user_usage as
        select e.rm, e.instance, case e.change_detail_number when 603 then 'user' else 'group' end as kind,
            e.object_id as name, e.reference_id as queue, r.key as resource_type,
            {schema}.time_of(e.timestamp_ns) as time,
            case e.change_type_number when 2 then r.value::numeric else -r.value::numeric end as delta,
            sum(case e.change_type_number when 2 then r.value::numeric else -r.value::numeric end) over (
                partition by e.rm, e.instance, e.change_detail_number, e.object_id, e.reference_id, r.key
                order by e.id rows unbounded preceding) as used,
            e.id
        from {schema}.events e, jsonb_each_text(e.resource) r
        where e.type_number = 5 and e.change_detail_number in (603, 604) and e.change_type_number in (2, 3);

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

# A rejected submission of an id that is taken is no state of the application that has it.
_SENT_AGAIN = """
    create or replace view {schema}.applications as
        with submitted as (
            select rm, instance, object_id as application, id, change_type_number, change_detail_number,
                max(id) filter (where change_type_number = 2) over before as begun_id,
                max(id) filter (where change_type_number = 3 and change_detail_number = 0) over before as left_id
            from {schema}.events
            where type_number = 2 and (
                (change_type_number = 2 and change_detail_number in (0, 203))
                or (change_type_number = 3 and change_detail_number in (0, 202)))
            window before as (
                partition by rm, instance, object_id order by id rows between unbounded preceding and 1 preceding)
        ), lives as (
            select rm, instance, application, id as first_id, lead(id) over each_life as next_id,
                row_number() over each_life as life
            from submitted
            -- APP ADD without a detail and APP_NEW are one submission when nothing is between them. A rejected
            -- submission is a life of its own when the application has left.
            where (change_type_number = 2 and (begun_id is null or id > begun_id + 1))
                or (change_detail_number = 202 and left_id > coalesce(begun_id, -1))
            window each_life as (partition by rm, instance, application order by id)
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
                -- (Without 212: that it expired says only that it is forgotten, three days after its end.)
                min(timestamp_ns) filter (where change_detail_number in (208, 210)) as over_ns,
                min(timestamp_ns) filter (where change_detail_number = 202) as rejected_ns,
                max(message) filter (where change_detail_number = 202) as why_rejected,
                max(timestamp_ns) filter (where change_type_number = 3 and change_detail_number = 0) as left_ns,
                (array_agg(change_detail order by id desc)
                    filter (where change_detail_number between 203 and 211))[1] as entered,
                (array_agg(message order by id desc) filter (where message <> '' and (
                    change_detail_number between 203 and 211
                    or (change_type_number = 3 and change_detail_number = 0))))[1] as told_message,
                min(id) filter (where change_type_number = 2 and change_detail_number = 200) as allocated_id,
                min(timestamp_ns) filter (where change_type_number = 2 and change_detail_number = 200) as allocated_ns,
                count(*) filter (where change_type_number = 2 and change_detail_number = 201) as asks,
                count(*) filter (where change_type_number = 2 and change_detail_number = 200) as allocations,
                count(*) filter (where change_detail_number = 501) as preempted
            from told
            group by rm, instance, application, life
        ), stated as (
            -- Of an application that is there it says nothing that its id was sent again and rejected.
            select *, case when entered is null and rejected_ns is not null then 'APP_REJECT' else entered end as state,
                coalesce(over_ns, case when entered is null then rejected_ns end) as ended_ns,
                coalesce(told_message, case when entered is null then why_rejected end) as message
            from summed
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
                    and u.type_number = 5 and u.change_type_number <> 3 and u.change_detail_number = 602
                order by u.id desc limit 1) as user_group,
            -- With each allocation, behind its two events, that of what its user uses.
            (select u.object_id from {schema}.events u
                where u.rm = s.rm and u.instance = s.instance and u.id between s.allocated_id + 1 and s.allocated_id + 3
                    and u.timestamp_ns = s.allocated_ns
                    and u.type_number = 5 and u.change_type_number = 2 and u.change_detail_number = 603
                order by u.id limit 1) as user_name,
            case when s.ended_ns is null and s.left_ns is not null then 'Removed'
                when s.state = 'APP_REJECT' then 'Rejected' else initcap(substr(s.state, 5)) end as state,
            {schema}.time_of(s.submitted_ns) as submitted_time, {schema}.time_of(s.accepted_ns) as accepted_time,
            {schema}.time_of(s.started_ns) as started_time,
            {schema}.time_of(coalesce(s.ended_ns, s.left_ns)) as finished_time,
            s.asks, s.allocations - c.changed as allocations, c.running,
            s.preempted,
            (select jsonb_object_agg(t.resource_type, t.used order by t.resource_type) from (
                select r.key as resource_type, sum(r.value::numeric * (p.end_ns - p.begin_ns) / 1000000000) as used
                from {schema}.pairs p, jsonb_each_text(p.resource) r
                where p.rm = s.rm and p.instance = s.instance and p.application = s.application
                    and p.begin_id >= s.first_id and (s.next_id is null or p.begin_id < s.next_id)
                    and p.end_ns is not null
                group by r.key) t) as resource_seconds,
            coalesce(s.message, '') as message, s.first_id, s.last_id
        from stated s
        cross join lateral (
            select count(*) filter (where p.end_ns is null) as running, count(*) filter (where p.changed) as changed
            from {schema}.pairs p
            where p.rm = s.rm and p.instance = s.instance and p.application = s.application
                and p.begin_id >= s.first_id and (s.next_id is null or p.begin_id < s.next_id)) c;
    """

# Each entry is one version, applied in one transaction; {schema} is a checked plain name. Entries are never changed,
# only added.
MIGRATIONS: tuple[str, ...] = (_EVENTS, _VIEWS, _SENT_AGAIN)

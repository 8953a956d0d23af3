-- Muster's role owns its database and can do nothing else. (Runs once, when the volume is new.)
\set password `cat /run/secrets/postgres_muster_password`
create role muster login nosuperuser nocreatedb nocreaterole password :'password';
alter database muster owner to muster;
revoke all on database muster, postgres, template1 from public;

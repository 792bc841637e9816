"""What can be wrong between machines, looked for one thing at a time; every check gives a finding.

finding         what a check gives: a mark, what was seen, the fix
lookups         names and addresses, timed, and given up in time
probe_server    the doctor's own mailbox, which answers other doctors
local_checks    checks of this machine
identity        who answers at an address: whose certificate, and which side lacks keys
measure         how many bytes a second
remote_checks   checks of another machine
"""

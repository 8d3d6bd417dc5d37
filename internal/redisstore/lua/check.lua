-- Tries each command that the other scripts call, on keys that are not there.
--
-- Result  the name and the error of each command that failed, one after the other
--
-- Atomic because nobody may record a claim at the keys meanwhile. It changes nothing: SET is given XX, which has it write
-- only where there is a value, and is still refused to a user who may not write, by a replica and by a server that is full.

local failed = {}

local function try(name, ...)
  local reply = redis.pcall(name, ...)
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = name
    failed[#failed + 1] = reply.err
  end
end

try('TIME')
for _, key in ipairs(KEYS) do
  try('GET', key)
  try('PTTL', key)
  try('SET', key, '', 'XX', 'PX', '1') -- first of those that write: a server that is full refuses no later one
  try('GETEX', key)
  try('PEXPIRE', key, '1')
  try('DEL', key)
end
try(waking, lock .. ':free', '')
return failed

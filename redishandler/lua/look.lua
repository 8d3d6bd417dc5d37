-- Tells who holds the lock on one server of a quorum: inspect.lua, which goes before it as the function inspect, and the
-- token that holds.
--
-- Result  as in inspect.lua, and the holder's token at the end; empty if nobody holds
--
-- Atomic because the token must be that of the holder who is told. It writes nothing, so that a replica answers as well.

local answer = inspect()
if answer[1] then
  local held = recorded()
  answer[#answer + 1] = held.token or held.value
end
return answer

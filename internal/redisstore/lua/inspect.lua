-- Returns who holds the lock.
--
-- Result  holder, since, until, left in ms, token; empty if nobody holds
--
-- Atomic so that the expiry belongs to the claim. It writes nothing, so that a replica answers as well.

local now = clock()
local held = recorded()
if held == FOREIGN then
  return FOREIGN
end
if not held then
  return {}
end
return {described(held, now)}

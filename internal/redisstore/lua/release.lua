-- Forgets a claim if its token still holds, and remembers the token as released if it is asked to.
--
-- ARGV    token, and where they are needed: how long to remember it in ms (0: not), the companion's time in ms, 1 to wake
--         nobody, and the fence, if it is for one grant of the claim and no other (0: any)
-- Result  1 released, 0 the token did not hold and nothing was changed
--
-- Atomic because the key must not be deleted when it has become somebody else's after it was read. DEL goes first: a
-- server out of memory does that, and whatever follows in the same script.

local token, keep, life, quiet, fence = unpack(ARGV)
keep, fence = tonumber(keep or 0), tonumber(fence or 0)

local now = clock()
local held = recorded()
local past = remembered(now)
if held == FOREIGN or past == FOREIGN then
  return FOREIGN
end
if not held or held.token ~= token or fence ~= 0 and held.fence ~= fence then
  return refuse(0)
end

redis.call('DEL', lock)
if companion and keep > 0 then
  past.expires = now + keep
  -- pcall: the claim has been released, whatever becomes of what is remembered of it.
  redis.pcall('SET', companion, digits(held.fence) .. ' ' .. digits(past.expires) .. ' ' .. token, 'PX', lifetime(past, now, life))
elseif companion and life then
  -- A token that is remembered stays so: its claim was mirrored, this one was not, so only its record can be stale.
  redis.call('PEXPIRE', companion, lifetime(past, now, life))
end
if quiet ~= '1' then
  wake()
end
return 1

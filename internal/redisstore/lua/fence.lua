-- Returns the fence of a claim that holds, so that this grant of it can be released and no later one.
--
-- ARGV    token
-- Result  the fence; '' if the token does not hold
--
-- Atomic because it is one read. It writes nothing.

local held = recorded()
if held == FOREIGN then
  return FOREIGN
end
return held and held.token == ARGV[1] and held.fence or ''

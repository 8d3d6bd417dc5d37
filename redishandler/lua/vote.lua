-- Answers a claim as one server of a quorum: grant.lua, which goes before it as the function grant, and whose token it is
-- that holds if the claim does not. Who counts votes has to know which of them are for one and the same claim.
--
-- ARGV    as in grant.lua
-- Result  as in grant.lua; a refusal has the holder's token as well, at the end
--
-- Atomic because the token must be that of the claim for which the other was refused.

local answer = grant()
if answer[1] == '0' then
  local held = recorded()
  answer[#answer + 1] = held.token or held.value
end
return answer

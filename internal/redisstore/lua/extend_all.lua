-- Renews many claims, each as extend.lua does.
--
-- KEYS    the lock and its companion of the first claim, then those of the second, and so on
-- ARGV    token, expiry in ms and the companion's time in ms of the first claim, then those of the second, and so on
-- Result  for each claim: 1 renewed, 0 the token does not hold and nothing was changed, or the text of an error
--
-- Atomic for each claim as extend.lua is; pcall, because an error concerns one claim. What extend_first.lua decides is
-- decided here in the same way, in a fraction of the time.

local now = clock()

local function decide(token, expiry, life)
  if companion then
    local value, past = redis.call('GET', lock), redis.call('GET', companion)
    if value and string.sub(value, 1, #token + 1) == token .. ' ' and past and string.find(past, '^%d+$')
      and redis.call('PTTL', lock) <= tonumber(expiry) then
      redis.call('PEXPIRE', lock, expiry)
      redis.call('PEXPIRE', companion, life)
      return 1
    end
  end
  return extend(token, expiry, life, now)
end

local answers = {}
local each = 3 * #KEYS / #ARGV -- keys: with LokiNet's there is no companion
for i = 1, #KEYS / each do
  lock, companion = KEYS[each * (i - 1) + 1], each == 2 and KEYS[2 * i]
  local done, answer = pcall(decide, ARGV[3 * i - 2], ARGV[3 * i - 1], ARGV[3 * i])
  answers[i] = type(answer) == 'table' and answer.err or answer
end
return answers

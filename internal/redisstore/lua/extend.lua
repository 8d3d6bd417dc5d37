-- Renews a claim if its token still holds. It never takes the lock anew.
--
-- ARGV    token, expiry in ms, the companion's time in ms
-- Result  1 renewed, 0 the token does not hold and nothing was changed
--
-- Atomic because an expiry must not be given to a claim that is somebody else's by then. It writes with PEXPIRE only,
-- which a server out of memory still does.

return extend(ARGV[1], ARGV[2], ARGV[3], clock())

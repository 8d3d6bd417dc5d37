-- session refuses the session if the statements would not be committed in it; see grant.
--
-- Arguments: none. Result: none, or error 50007.
--
-- Atomic: it looks at a setting and changes nothing.
IF @@OPTIONS & 2 = 2 THROW 50007, N'This session has IMPLICIT_TRANSACTIONS on.', 1;

package mssqlname_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lokilock/loki/internal/mssqlname"
)

func TestFill(t *testing.T) {
	const statement = "[dbo].[LokiLockings] N'[dbo].[LokiLockings]' [PK_LokiLockings] N'[PK_LokiLockings]' [dbo] [LokiLockings] N'dbo'"
	require.Equal(t, statement, mssqlname.Default().Fill(statement))
	nasty := mssqlname.Table{Schema: "it's", Name: "a]b"}
	require.Equal(t, "[it's].[a]]b]", nasty.Quoted())
	require.Equal(t, "[it's].[a]]b] N'[it''s].[a]]b]' [PK_a]]b] N'[PK_a]]b]' [dbo] [LokiLockings] N'dbo'", nasty.Fill(statement))

	const history = "[dbo].[LokiLockingsHistory] N'[dbo].[LokiLockingsHistory]' [PK_LokiLockingsHistory]"
	require.Equal(t, history, mssqlname.Default().Fill(history))
	require.Equal(t, "[it's].[a]]bHistory] N'[it''s].[a]]bHistory]' [PK_a]]bHistory]", nasty.Fill(history))
	require.Equal(t, mssqlname.Table{Schema: "it's", Name: "a]bHistory"}, nasty.History())

	tricky := mssqlname.Table{Schema: "dbo].[LokiLockings", Name: "[PK_LokiLockings]"}
	require.Equal(t, "[dbo]].[LokiLockings].[[PK_LokiLockings]]]", tricky.Fill("[dbo].[LokiLockings]"), "what was filled in is not filled in again")
}

func TestValidate(t *testing.T) {
	require.NoError(t, mssqlname.Default().Validate())
	require.NoError(t, mssqlname.Table{Schema: strings.Repeat("𐍈", 64), Name: strings.Repeat("t", 118)}.Validate())
	for says, table := range map[string]mssqlname.Table{
		"schema is empty":     {Name: "t"},
		"table is empty":      {Schema: "s"},
		"at most 118":         {Schema: "s", Name: strings.Repeat("t", 119)},
		"at most 128":         {Schema: strings.Repeat("𐍈", 64) + "s", Name: "t"},
		"not valid UTF-8":     {Schema: "\xff", Name: "t"},
		"a control character": {Schema: "s", Name: "a\r\nb"},
	} {
		require.ErrorContains(t, table.Validate(), says)
	}
	err := mssqlname.Table{}.Validate()
	require.ErrorContains(t, err, "schema")
	require.ErrorContains(t, err, "table", "every mistake at once")
}

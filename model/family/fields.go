package family

import "github.com/athanor-llm/athanor/model"

// field returns a pointer to a field of a model.
type field func(m *model.Model) any

func layers(m *model.Model) any      { return &m.Layers }
func width(m *model.Model) any       { return &m.Width }
func heads(m *model.Model) any       { return &m.Heads }
func kvHeads(m *model.Model) any     { return &m.KVHeads }
func headDim(m *model.Model) any     { return &m.HeadDim }
func feedForward(m *model.Model) any { return &m.FeedForward }
func experts(m *model.Model) any     { return &m.Experts }
func active(m *model.Model) any      { return &m.Active }
func gateLimit(m *model.Model) any   { return &m.GateLimit }
func gateAlpha(m *model.Model) any   { return &m.GateAlpha }
func groups(m *model.Model) any      { return &m.Router.Groups }
func bestGroups(m *model.Model) any  { return &m.Router.Best }
func routeTimes(m *model.Model) any  { return &m.Router.Scale }
func dense(m *model.Model) any       { return &m.Dense }
func denseWidth(m *model.Model) any  { return &m.DenseWidth }
func normedRoute(m *model.Model) any { return &m.NormedRoute }

func vocab(m *model.Model) any          { return &m.Vocab }
func maxPositions(m *model.Model) any   { return &m.MaxPositions }
func activation(m *model.Model) any     { return &m.Activation }
func normEps(m *model.Model) any        { return &m.NormEps }
func ropeTheta(m *model.Model) any      { return &m.RopeTheta }
func window(m *model.Model) any         { return &m.Window }
func parallel(m *model.Model) any       { return &m.Parallel }
func queryScalar(m *model.Model) any    { return &m.QueryScalar }
func tied(m *model.Model) any           { return &m.Tied }
func qkvBias(m *model.Model) any        { return &m.QKVBias }
func outBias(m *model.Model) any        { return &m.OutBias }
func mlpBias(m *model.Model) any        { return &m.MLPBias }
func initStd(m *model.Model) any        { return &m.InitStd }
func embeddingTimes(m *model.Model) any { return &m.Multipliers.Embedding }
func residualTimes(m *model.Model) any  { return &m.Multipliers.Residual }
func attentionTimes(m *model.Model) any { return &m.Multipliers.Attention }
func scoreCap(m *model.Model) any       { return &m.ScoreCap }
func logitCap(m *model.Model) any       { return &m.LogitCap }
func logitsOver(m *model.Model) any     { return &m.Multipliers.Logits }

// Defaults that follow from other fields.
var (
	asHeads   derived = func(m *model.Model) int { return m.Heads }
	perHead   derived = func(m *model.Model) int { return m.Width / max(m.Heads, 1) }
	fourWidth derived = func(m *model.Model) int { return 4 * m.Width }
)

// activated is the row of the activation: any that is built, since none is special to a family.
func activated(key, def string) row {
	return row{key: key, field: activation, def: def, only: model.ActivationNames()}
}

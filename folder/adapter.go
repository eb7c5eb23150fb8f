package folder

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/athanor-llm/athanor/checkpoint/safetensors"
	"github.com/athanor-llm/athanor/internal/bounded"
	"github.com/athanor-llm/athanor/internal/jsonkeys"
	"github.com/athanor-llm/athanor/internal/paths"
	"github.com/athanor-llm/athanor/internal/suggest"
	"github.com/athanor-llm/athanor/model"
	"github.com/athanor-llm/athanor/model/family"
)

// Adapters (model.LoRA) are written and read as folders of Hugging Face's PEFT:
//
//	adapter_config.json          rank, adapted modules, the folder of the model
//	adapter_model.safetensors    the factors, and what is trained whole beside them
//
// Such a folder can be used wherever a model folder can, also to start training from its factors; the
// weights that it lacks come from the folder that it names. Settings of adapter_config.json other than rank and
// scale that would change results are refused.

// AdapterFile is the file that makes a folder an adapter's.
const AdapterFile = "adapter_config.json"

// adapterConfig is the content of adapter_config.json.
type adapterConfig struct {
	Type   string  `json:"peft_type"`
	Task   string  `json:"task_type"`
	Base   string  `json:"base_model_name_or_path"`
	Rank   int     `json:"r"`
	Alpha  float64 `json:"lora_alpha"`
	RSLoRA bool    `json:"use_rslora"`
	DoRA   bool    `json:"use_dora"`
	// Ranks and Alphas are those of modules whose names end so, as regular expressions.
	Ranks   map[string]int     `json:"rank_pattern,omitempty"`
	Alphas  map[string]float64 `json:"alpha_pattern,omitempty"`
	Dropout float64            `json:"lora_dropout"`
	Bias    string             `json:"bias"`
	Init    any                `json:"init_lora_weights,omitempty"`
	Modules any                `json:"target_modules"` // names or a pattern; when adapters are read, the factors' names count instead
	// Parameters are those of experts, where factor names do not say which of a module's parameters they adapt.
	Parameters []string `json:"target_parameters"`
	Whole      []string `json:"modules_to_save"`
	// Tokens are those whose rows of embedding or head the adapter replaces.
	Tokens json.RawMessage `json:"trainable_token_indices,omitempty"`
	// Tying says that the head remains the embedding if that is trained whole.
	Tying bool `json:"ensure_weight_tying,omitempty"`
	// Transposed tells PEFT that weights are stored [in, out].
	Transposed bool `json:"fan_in_fan_out"`
	Inference  bool `json:"inference_mode"`

	labels     []string // names that the run recorded which wrote the folder; PEFT has none
	regression bool     // likewise: there is one, whose value is learnt
}

// DescribeAdapter returns the adapter_config.json of a model whose weights are in a
// folder.
func DescribeAdapter(m *model.Model, folder string) ([]byte, error) {
	base, isHub := paths.HubName(folder)
	if !isHub {
		var err error
		if base, err = filepath.Abs(folder); err != nil {
			return nil, err
		}
	}
	modules, parameters := m.PEFT().Modules()
	var targets any = append([]string{}, modules...)
	if m.Inside != "" && len(modules) > 0 {
		targets = m.PEFT().Pattern(modules)
	}
	whole := m.PEFT().WholeModules()
	ranks, alphas := ownPatterns(m)
	text, err := json.MarshalIndent(adapterConfig{
		Ranks: ranks, Alphas: alphas,
		Type: "LORA", Task: taskOf(m), Base: base, Rank: m.LoRA.Rank, Alpha: m.LoRA.Alpha, RSLoRA: m.LoRA.RSLoRA, DoRA: m.LoRA.DoRA, Dropout: m.LoRA.Dropout, Bias: "none",
		Modules: targets, Parameters: parameters, Transposed: m.InOut(), Inference: true,
		Whole: whole, Tying: m.Tied && len(whole) > 0,
	}, "", "  ")
	return append(text, '\n'), err
}

// taskOf returns PEFT's name of what a model computes.
func taskOf(m *model.Model) string {
	if model.Classifies(m) {
		return sequenceLabels
	}
	return "CAUSAL_LM"
}

const sequenceLabels = "SEQ_CLS"

// labelled returns a model with as many labels as the head in an adapter's files has, if PEFT's task is that.
func (c *adapterConfig) labelled(m *model.Model, set *safetensors.Set) (*model.Model, error) {
	if c.Task != sequenceLabels || model.Classifies(m) {
		return m, nil
	}
	info, ok := set.Lookup("base_model.model." + model.ScoreModule + ".weight")
	if !ok || len(info.Shape) != 2 || info.Shape[0] < 1 || info.Shape[0] > model.MostLabels {
		return nil, fmt.Errorf("task_type is %s, but there is no head %s with a row for each label; hint: check that the folder is complete", sequenceLabels, model.ScoreModule)
	}
	with := *m
	c.Whole = slices.DeleteFunc(slices.Clone(c.Whole), func(module string) bool { return module == "classifier" }) // which PEFT names for models that call it so
	names := c.labels
	if len(names) != info.Shape[0] {
		names = model.LabelNames(info.Shape[0])
	}
	err := family.Classify(&with, names)
	with.Regression = c.regression && len(names) == 1
	return &with, err
}

// readAdapter reads the adapter_config.json of a folder. The base is a path that can be
// opened from here.
func readAdapter(dir string) (*adapterConfig, error) {
	text, err := bounded.ReadFile(filepath.Join(dir, AdapterFile), maxModel)
	if err != nil {
		return nil, err
	}
	c, all := &adapterConfig{}, map[string]any{}
	if err = jsonkeys.Explain(text, cmp.Or(json.Unmarshal(text, c), json.Unmarshal(text, &all), jsonkeys.Unique(text))); err == nil {
		err = c.check(all)
	}
	if err != nil {
		return nil, suggest.Add(fmt.Errorf("%s: %s: %w", dir, AdapterFile, err), "check that it is the file that PEFT has written")
	}
	if beside := filepath.Join(dir, c.Base); !isModel(c.Base) && isModel(beside) {
		c.Base = beside
	}
	c.Base = paths.Hub(c.Base)
	if c.Task == sequenceLabels {
		t, _ := readTrained(dir)
		c.labels, c.regression = t.Labels, t.Valued
	}
	return c, nil
}

// adapterKeys are the settings that are implemented, or do not change what a trained
// adapter computes. Others must be null, false or empty.
var adapterKeys = strings.Fields(`peft_type peft_version task_type base_model_name_or_path revision auto_mapping inference_mode runtime_config
	r lora_alpha rank_pattern alpha_pattern use_rslora use_dora bias fan_in_fan_out lora_dropout init_lora_weights loftq_config corda_config eva_config lora_ga_config qalora_group_size
	target_modules target_parameters exclude_modules layers_to_transform layers_pattern megatron_core
	modules_to_save ensure_weight_tying trainable_token_indices`)

// plainInits are ways to begin with that leave the model's weights as they are. All others that PEFT has (pissa, olora,
// corda, loftq, lora_ga) move a part of each weight into its factors, and do so again when the adapter is loaded.
var plainInits = []any{nil, true, false, "gaussian", "eva", "orthogonal", "mica"}

// trivial reports whether a setting is off.
func trivial(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case bool:
		return !v
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

func isModel(dir string) bool { return paths.Exists(filepath.Join(dir, "config.json")) }

// IsAdapter reports whether a folder is an adapter's.
func IsAdapter(dir string) bool { return paths.Exists(filepath.Join(dir, AdapterFile)) }

// AdaptedModel returns the model of an adapter's folder with its adapters, and the folder of the model's weights.
func AdaptedModel(dir string) (m *model.Model, base string, notes []string, err error) {
	c, err := readAdapter(dir)
	if err != nil {
		return nil, "", nil, err
	}
	text, err := ReadConfig(c.Base)
	if err != nil {
		return nil, "", nil, c.noBase(dir, err)
	}
	if m, notes, err = family.Parse(text); err != nil {
		return nil, "", nil, fmt.Errorf("%s: %w", c.Base, err)
	}
	set, err := OpenAdapter(dir)
	if err != nil {
		return nil, "", nil, err
	}
	defer set.Close()
	if m, _, err = c.adapted(m, set); err == nil && c.Tokens != nil {
		err = errors.New("trainable_token_indices names rows of the embedding that are trained by themselves, which is not supported; hint: merge the adapter with athanor merge, or train the whole embedding by modules_to_save: [embed_tokens]")
	}
	if err != nil {
		return nil, "", nil, fmt.Errorf("%s: %w", dir, err)
	}
	if c.Dropout > 0 {
		notes = append(notes, fmt.Sprintf("lora_dropout %v of the adapter's folder is a setting of the run that made it; this run's is lora.dropout", c.Dropout))
	}
	return m, c.Base, notes, nil
}

// noBase returns the error for an adapter whose model cannot be opened.
func (c *adapterConfig) noBase(dir string, err error) error {
	return fmt.Errorf("cannot open the model that the adapter %s was trained on: %w; hint: set base_model_name_or_path in its %s to the path of that model", dir, err, AdapterFile)
}

// check refuses what is not implemented.
func (c *adapterConfig) check(all map[string]any) error {
	if c.Type != "LORA" {
		return fmt.Errorf("peft_type %q is not supported; hint: use an adapter of type LORA", c.Type)
	}
	if !(c.Alpha > 0) || c.Rank < 1 {
		return fmt.Errorf("lora_alpha is %v and r is %d; hint: both must be positive", c.Alpha, c.Rank)
	}
	if c.Base == "" {
		return errors.New("base_model_name_or_path is missing; hint: set it to the folder of the model that the adapter was trained on")
	}
	if c.Bias != "" && c.Bias != "none" {
		return fmt.Errorf("bias %q is not supported; hint: use an adapter without biases", c.Bias)
	}
	if !slices.Contains(plainInits, c.Init) {
		return fmt.Errorf("init_lora_weights is %v: such an adapter changes the model's own weights when it is loaded, which is not supported; hint: save it with PEFT's path_initial_model_for_weight_conversion, which makes it one that does not", c.Init)
	}
	if trivial(all["trainable_token_indices"]) {
		c.Tokens = nil
	}
	for key, v := range all {
		if !trivial(v) && !slices.Contains(adapterKeys, key) {
			text, _ := json.Marshal(v) // it was JSON
			return fmt.Errorf("%s is %s, which is not supported; hint: use an adapter without this setting", key, text)
		}
	}
	return nil
}

// checkTarget returns an error if a factor is of a module that is not in target_modules: PEFT would leave it out.
func (c *adapterConfig) checkTarget(name string) error {
	module, is := strings.CutSuffix(strings.TrimPrefix(name, "base_model.model."), ".lora_A.weight")
	targets, list := c.Modules.([]any)
	if !is || !list || len(targets) == 0 || len(c.Parameters) > 0 {
		return nil
	}
	for _, target := range targets {
		if t, ok := target.(string); !ok || module == t || strings.HasSuffix(module, "."+t) || t == "all-linear" {
			return nil
		}
	}
	return fmt.Errorf("there is %s, but target_modules does not have its module; hint: check that adapter_config.json belongs to these weights", name)
}

// adapted returns a model with the adapters whose factors are in a set, all of one rank, and with what is stored beside them;
// and the rows that it replaces.
func (c *adapterConfig) adapted(m *model.Model, set *safetensors.Set) (*model.Model, map[string]tokenRows, error) {
	m, err := c.labelled(m, set)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, t := range set.Tensors() {
		if err := c.checkTarget(t.Name); err != nil {
			return nil, nil, err
		}
		names = append(names, t.Name)
	}
	weights := m.PEFT().AdaptedIn(names, c.Parameters)
	if len(weights) == 0 {
		return nil, nil, errors.New("no tensor has a name that ends in lora_A.weight; hint: check that this is a PEFT adapter")
	}
	part := *m
	own, err := c.own(weights)
	if err != nil {
		return nil, nil, err
	}
	if err := part.Adapt(model.LoRA{Rank: c.Rank, Alpha: c.Alpha, RSLoRA: c.RSLoRA, DoRA: c.DoRA, Own: own}, weights...); err != nil {
		return nil, nil, err
	}
	rows, err := c.tokenRows(&part)
	if err == nil {
		err = c.addWhole(&part, names)
	}
	if err != nil {
		return nil, nil, err
	}
	c.resize(&part, set)
	var tensors []string
	for _, r := range rows {
		if err := r.check(&part, set); err != nil {
			return nil, nil, err
		}
		tensors = append(tensors, r.tensor)
	}
	return &part, rows, checkUsed(set, &part, true, tensors...)
}

// addWhole adds what is trained whole, and copies of the model's own parameters. names are those of the adapter's tensors.
func (c *adapterConfig) addWhole(m *model.Model, names []string) error {
	if !c.Tying {
		m.Part(c.Whole)
	}
	embedding := m.Params()[0].Name
	if _, _, adapted := m.Factors(embedding); adapted && c.Tying && m.Tied {
		return fmt.Errorf("ensure_weight_tying is true and %s has an adapter: factors that embedding and head share are not supported; hint: merge the adapter with PEFT's merge_and_unload, or train embed_tokens by modules_to_save", embedding)
	}
	if err := m.TrainWhole(c.Whole...); err != nil {
		return err
	}
	m.Keep(names)
	for _, p := range m.Params() {
		if name := p.Tensors()[0].Name; p.Whole && !slices.Contains(names, name) {
			return fmt.Errorf("modules_to_save has %s, but there is no tensor %s; hint: check that the folder is complete", p.Name, name)
		}
	}
	return nil
}

// resize gives a model the vocabulary of the embedding, or the head, that an adapter's files have whole.
func (c *adapterConfig) resize(m *model.Model, set *safetensors.Set) {
	for _, p := range m.Params() {
		if info, ok := set.Lookup(p.Tensors()[0].Name); ok && p.Whole && m.PEFT().OfVocabulary(p) && len(info.Shape) > 0 && info.Shape[0] != m.Vocab {
			m.Resize(info.Shape[0])
			return
		}
	}
}

// OpenAdapter opens the factors in a PEFT folder, and verifies those of a checkpoint as OpenWeights does.
func OpenAdapter(dir string) (*safetensors.Set, error) {
	if err := checkWhole(dir); err != nil {
		return nil, err
	}
	set, err := safetensors.OpenIn(dir, "adapter_model")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s has no adapter_model.safetensors; hint: check that the folder is complete", dir)
	}
	return set, suggest.Add(err, "copy the adapter again")
}

// Fingerprint identifies the weights of a model folder, as fingerprint does.
func Fingerprint(dir string) (string, error) {
	set, err := safetensors.OpenFolder(dir)
	if err != nil {
		return "", WeightsError(dir, err)
	}
	text, err := fingerprint(set)
	return text, WeightsError(dir, errors.Join(err, set.Close()))
}

// fingerprint identifies weights: a hash of all names and shapes and of some numbers of
// each tensor. It distinguishes models at no cost, but does not prove that nothing was
// damaged.
func fingerprint(set *safetensors.Set) (string, error) {
	const numbers = 16
	h := sha256.New()
	list := slices.Clone(set.Tensors())
	slices.SortFunc(list, func(a, b safetensors.Info) int { return strings.Compare(a.Name, b.Name) })
	var some [numbers]float32
	for _, t := range list {
		fmt.Fprintln(h, t.Name, t.Shape)
		elems := 1
		for _, n := range t.Shape {
			elems *= n
		}
		n := min(numbers, elems)
		for _, first := range []int{0, (elems - n) / 2} {
			if !t.DType.Float() { // such as U8, of MXFP4 and of masks
				var some [numbers]byte
				if err := set.ReadBytes(t.Name, int64(first), some[:n]); err != nil {
					return "", err
				}
				fmt.Fprintln(h, some[:n])
				continue
			}
			if err := set.ReadFloat32(t.Name, first, some[:n]); err != nil {
				return "", err
			}
			fmt.Fprintln(h, some[:n])
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// Package chat turns conversations into documents, using the chat template of a model's folder.
//
//	JSON --Decode--> Conversation --Template.Document--> what is given and what is learnt
//
// # What is learnt
//
// What the assistant says, and the token that ends its turn. For an answer, what is given is the rendering of
// all turns before it with the generation prompt, which is what a model is given when it is to answer; what is
// learnt is what the rendering of these turns with the answer adds, up to and including the first special token
// after the answer's content and those directly after that. What follows, such as a line break, is given.
//
// Where a template marks what is generated ({% generation %}), the marks decide.
//
// Otherwise what is given must be the beginning of the rendering with the answer. Where a template writes earlier
// turns differently once there are later ones (Qwen3's drops their thoughts), the document is the rendering of the
// whole conversation, and each earlier answer is learnt as it is there. A document for each answer, after exactly what
// a model would be given for it, would also teach the earlier thoughts, but takes tokens that grow with the square of
// the turns: 45,000 instead of 2,200 for 40 short questions. Where an answer does not even begin with the generation prompt (DeepSeek-R1's ends with
// <think>, but its answers have no thoughts; Mistral's puts the system's text before the last question only if
// no answer follows), it cannot be determined what to learn, and the conversation is refused.
//
// # Tools, and contents in parts
//
// The schemas of tools next to the messages, and contents that are lists of texts, go to the template
// unchanged. A template without tools leaves them out. One that does not know parts may write the list as
// Python prints it (Llama 3's), or nothing (Qwen3's): so its output is searched for the texts, and the
// conversation is refused if they are not there.
//
// # Who wrote a control token
//
// A special token of the tokenizer counts as one where the template wrote all of it, or the name of a known
// role. In the contents of messages, and in tools, the same characters are text, so that <|im_end|> in a
// question does not end it. transformers' option sanitize_control_tokens does something similar; its default
// does not. Added tokens that are not special, such as <think> and <tool_call>, are tokens everywhere: an
// assistant's content contains them on purpose.
//
// # Tokens
//
// What is given and what is learnt are encoded separately, as when a model answers: the tokens are those of the
// whole rendering unless one would span a border between the two (line breaks at the beginning of an answer
// after a prompt that ends with some).
//
// # The date
//
// Templates that ask for today's date get day in training data, so that tokens do not depend on when they are
// made.
package chat

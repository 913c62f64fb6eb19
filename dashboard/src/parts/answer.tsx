import { signal } from '@preact/signals'
import type { AnswerView } from '../api.ts'
import { bytes } from '../format.ts'
import { status } from '../status.ts'

/** Bodies are covered until somebody asks, and for this visit only: screens are shared. */
const isUncovered = signal(false)

export function AnswerPanel({ answer }: { answer: AnswerView }) {
  const { headers, bytes: length } = answer
  return (
    <section class="panel" aria-label="The answer">
      <h2>
        The answer <span class="code">{answer.status}</span>
      </h2>
      {headers.length > 0 && (
        <dl class="facts headers">
          {headers.map(([name, value], i) => (
            <div key={i}>
              <dt class="mono">{name}</dt>
              <dd class="mono wrap">{value}</dd>
            </div>
          ))}
        </dl>
      )}
      <Body answer={answer} length={length} />
    </section>
  )
}

function Body({ answer, length }: { answer: AnswerView; length: number }) {
  const { bodyText, bodyBase64, isHidden } = answer
  if (isHidden) {
    return (
      <p class="quiet">
        The body has {bytes(length)}.{' '}
        {status.value?.reveal === false
          ? 'It is not shown: the admin API was started without --reveal.'
          : 'It is too large to be shown here.'}
      </p>
    )
  }
  if (bodyText === undefined && bodyBase64 === undefined) {
    return <p class="quiet">The body was not kept: it was too large, or it was redacted.</p>
  }
  if (length === 0) return <p class="quiet">The body is empty.</p>
  if (!isUncovered.value) {
    return (
      <button type="button" onClick={() => uncover(true)}>
        Show the body ({bytes(length)})
      </button>
    )
  }
  return (
    <>
      <pre>{bodyText === undefined ? bodyBase64 : pretty(bodyText)}</pre>
      <button type="button" onClick={() => uncover(false)}>
        Cover the body
      </button>
    </>
  )
}

function uncover(value: boolean): void {
  isUncovered.value = value
}

/** Only what survives it unchanged: a number with more digits than a double has must not look like another one. */
function pretty(text: string): string {
  try {
    const value: unknown = JSON.parse(text)
    return JSON.stringify(value) === withoutSpace(text) ? JSON.stringify(value, null, 2) : text
  } catch {
    return text
  }
}

const STRING_OR_SPACE = /"(?:[^"\\]|\\.)*"|\s+/g

/** JSON as it is, but for the space between its parts. */
function withoutSpace(text: string): string {
  return text.replaceAll(STRING_OR_SPACE, (part) => (part.startsWith('"') ? part : ''))
}
